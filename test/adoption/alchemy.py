"""An application in SQLAlchemy that keeps orders of customers in another database: "alchemy.py FLOW ARGUMENT..." prints the result of a flow as JSON."""
import itertools
import json
import os
import sys

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, String, create_engine, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, declarative_base, relationship

Crm, Shop = declarative_base(), declarative_base()
count = itertools.count()


class Customer(Crm):
    __tablename__ = "customers_customer"
    id = Column(BigInteger, primary_key=True)
    name = Column(String(100), nullable=False)
    email = Column(String(254), nullable=False, unique=True)


class Order(Shop):
    __tablename__ = "store_order"
    id = Column(BigInteger, primary_key=True)
    customer_id = Column(BigInteger, nullable=False, index=True)
    state = Column(String(20), nullable=False, default="new")
    total = Column(Integer, nullable=False, default=0)
    lines = relationship("Line", back_populates="order", cascade="all, delete-orphan")


class Line(Shop):
    __tablename__ = "store_line"
    id = Column(BigInteger, primary_key=True)
    order_id = Column(ForeignKey(Order.id), nullable=False, index=True)
    article = Column(String(100), nullable=False)
    order = relationship(Order, back_populates="lines")


class Review(Shop):
    __tablename__ = "store_review"
    id = Column(BigInteger, primary_key=True)
    customer_id = Column(BigInteger, index=True)
    stars = Column(Integer, nullable=False)


class Invoice(Shop):
    __tablename__ = "store_invoice"
    number = Column(String(20), primary_key=True)
    customer_id = Column(BigInteger, nullable=False, index=True)


def engine(database):
    return create_engine(URL.create(
        "postgresql+psycopg2", os.environ["DB_USER"], os.environ["DB_PASSWORD"] or None, os.environ["DB_HOST"], int(os.environ["DB_PORT"]), os.environ[database]))


crm, shop = engine("CRM_DB"), engine("SHOP_DB")


def schema():
    Crm.metadata.create_all(crm)
    Shop.metadata.create_all(shop)


def customer():
    with Session(crm, expire_on_commit=False) as session:
        made = Customer(name="Ann", email="%d-%d@example.com" % (os.getpid(), next(count)))
        session.add(made)
        session.commit()
        return made


def day():
    """What people do in a day; it ends as it began, but for what it returns."""
    out, (ann, bob) = [], (customer(), customer())
    with Session(shop) as session:
        first = Order(customer_id=ann.id, lines=[Line(article="a"), Line(article="b")])
        session.add(first)
        session.add_all([Order(customer_id=bob.id, total=n) for n in range(50)])
        session.commit()
        session.execute(update(Order).where(Order.customer_id == bob.id).values(total=Order.total + 1))
        out.append(session.scalar(select(func.sum(Order.total)).where(Order.customer_id == bob.id)))
        first.customer_id = bob.id
        try:
            with session.begin_nested():
                session.add(Order(customer_id=ann.id))
                session.flush()
                raise ValueError("a savepoint is rolled back")
        except ValueError as e:
            out.append(str(e))
        for of in ann, bob:
            session.execute(insert(Invoice).values(number=ann.email[:19], customer_id=of.id).on_conflict_do_nothing())
        session.execute(insert(Invoice).values(number=ann.email[:19], customer_id=bob.id).on_conflict_do_update(index_elements=["number"], set_={"customer_id": bob.id}))
        session.commit()
        out.append(session.scalar(select(func.count()).where(Invoice.customer_id == bob.id)))
        for made in session.execute(select(Order).where(Order.customer_id == bob.id)).scalars():
            session.delete(made)
        session.delete(session.get(Invoice, ann.email[:19]))
        session.commit()
        out.append(session.scalar(select(func.count(Line.id)).join(Order).where(Order.customer_id == bob.id)))
    return out


def customer_with(*holders):
    made = customer()
    with Session(shop) as session:
        if "order" in holders:
            session.add(Order(customer_id=made.id, lines=[Line(article="a")]))
        if "review" in holders:
            session.add(Review(customer_id=made.id, stars=3))
        if "invoice" in holders:
            session.add(Invoice(number=made.email[:19], customer_id=made.id))
        session.commit()
    return made.id


def delete_customer(id):
    with Session(crm) as session:
        try:
            session.delete(session.get(Customer, int(id)))
            session.commit()
        except IntegrityError as e:
            return [e.orig.pgcode, e.orig.diag.message_detail]
    return "deleted"


def order_of(id):
    with Session(shop) as session:
        made = Order(customer_id=int(id))
        session.add(made)
        session.commit()
        return made.id


def try_order_of(id):
    try:
        return order_of(id)
    except DBAPIError as e:
        return e.orig.pgcode


def try_orphan():
    return try_order_of(999_999)


def many(n):
    with Session(crm, expire_on_commit=False) as session:
        made = [Customer(name="Eve", email="%d-%d@example.org" % (os.getpid(), i)) for i in range(int(n))]
        session.add_all(made)
        session.commit()
    with Session(shop) as session:
        session.add_all([Order(customer_id=c.id) for c in made])
        session.commit()
    return len(made)


def holders(id):
    with Session(shop) as session:
        counts = [session.scalar(select(func.count()).where(m.customer_id == int(id))) for m in (Order, Review, Invoice)]
        return counts + [session.scalar(select(func.count()).where(Review.customer_id.is_(None)))]


print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
