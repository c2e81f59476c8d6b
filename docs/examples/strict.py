"""How an application writes tables with strict references, with psycopg 2 or 3.

A first reference to a target fails with SQLSTATE RD001. Its DETAIL names the rights that are lacking: acquire them, and repeat the
transaction. Conflicts (40001) and deadlocks (40P01) are repeated as well, as anywhere in PostgreSQL.
"""
import sys
import time

try:
    import psycopg
except ImportError:
    import psycopg2 as psycopg


def transaction(dsn, work, tries=10):
    """Runs work(cursor) in a transaction, and returns its result."""
    for n in range(tries):
        connection = psycopg.connect(dsn)
        try:
            with connection, connection.cursor() as cursor:  # commits, or rolls back
                return work(cursor)
        except psycopg.Error as e:
            state = getattr(e, "sqlstate", None) or getattr(e, "pgcode", None)
            if state not in ("40001", "40P01", "RD001") or n == tries - 1:
                raise
            detail = e.diag.message_detail
        finally:
            connection.close()
        if state == "RD001":
            acquire(dsn, detail.split("\n"))
        else:
            time.sleep(0.01 * 2**n)


def acquire(dsn, rights):
    """Asks for rights, and waits for them. Error 23503: a target does not exist. RD002: its deployment could not be asked."""
    for call in ("acquire", "acquired"):
        connection = psycopg.connect(dsn)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute("SELECT dbcontroller." + call + "(%s)", (rights,))
        finally:
            connection.close()


if __name__ == "__main__":
    dsn, customer = sys.argv[1:]

    def order(cursor):
        cursor.execute("INSERT INTO orders (customer_id) VALUES (%s) RETURNING id", (customer,))
        return cursor.fetchone()[0]

    try:
        print("order", transaction(dsn, order))
    except psycopg.Error as e:
        print("refused:", getattr(e, "sqlstate", None) or getattr(e, "pgcode", None), e.diag.message_primary or e)
