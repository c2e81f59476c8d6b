"""The application's own tests of its flows, and the few commands of a clerk."""
import itertools
import json
import os

from django.core.management.base import BaseCommand
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import F, Sum

from customers.models import Address, Customer
from store.models import Invoice, Line, Order, Review

count = itertools.count()


def customer():
    unique = "%d-%d" % (os.getpid(), next(count))
    made = Customer.objects.create(name="Ann", email=unique + "@example.com")
    Address.objects.create(customer=made, city="Bern")
    return made


def order(of, lines=2):
    with transaction.atomic():
        made = Order.objects.create(customer_id=of.id)
        Line.objects.bulk_create([Line(order=made, article="a%d" % n) for n in range(lines)])
    return made


def everything():
    """What people do in a day; it ends as it began, but for what it returns."""
    out = []
    ann, bob = customer(), customer()
    first = order(ann)
    Order.objects.bulk_create([Order(customer_id=bob.id, total=n) for n in range(50)])
    out.append(Order.objects.filter(customer_id=bob.id).aggregate(Sum("total"))["total__sum"])
    Order.objects.filter(customer_id=bob.id).update(total=F("total") + 1, state="paid")
    out.append(Order.objects.filter(customer_id=bob.id, state="paid").aggregate(Sum("total"))["total__sum"])
    _, made = Review.objects.get_or_create(customer_id=ann.id, defaults={"stars": 4})
    review, again = Review.objects.update_or_create(customer_id=ann.id, defaults={"stars": 5})
    out.append([made, again, review.stars])
    with transaction.atomic():
        locked = Order.objects.select_for_update().get(pk=first.pk)
        locked.customer_id = bob.id
        locked.save()
        try:
            with transaction.atomic():
                order(ann)
                raise IntegrityError("a savepoint is rolled back")
        except IntegrityError as e:
            out.append(str(e))
    out.append(Order.objects.filter(customer_id=bob.id).count())
    try:
        Customer.objects.create(name="Bob", email=ann.email)
    except IntegrityError as e:
        out.append(e.__cause__.pgcode)
    Invoice.objects.bulk_create([Invoice(number=ann.email[:19], customer_id=ann.id)], ignore_conflicts=True)
    Invoice.objects.bulk_create([Invoice(number=ann.email[:19], customer_id=bob.id)], ignore_conflicts=True)
    out.append(Invoice.objects.filter(customer_id=ann.id).count())
    out.append(sorted(Order.objects.filter(customer_id=bob.id).delete()[1].items()))
    Invoice.objects.filter(customer_id=ann.id).delete()
    Review.objects.filter(customer_id=ann.id).delete()
    out.append(Line.objects.filter(order__customer_id__in=[ann.id, bob.id]).count())
    return out


class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("what")
        parser.add_argument("args", nargs="*")

    def handle(self, *args, **options):
        self.stdout.write(json.dumps(getattr(self, options["what"])(*args)))

    def day(self):
        return everything()

    def orphan(self):
        return Order.objects.create(customer_id=999_999).id

    def customer_with(self, *holders):
        """Makes a customer with an order, a review, an invoice."""
        made = customer()
        if "order" in holders:
            order(made)
        if "review" in holders:
            Review.objects.create(customer_id=made.id, stars=3)
        if "invoice" in holders:
            Invoice.objects.create(number=made.email[:19], customer_id=made.id)
        return made.id

    def delete_customer(self, id):
        try:
            with transaction.atomic(using="crm"):
                Customer.objects.get(pk=id).delete()
        except IntegrityError as e:
            return [e.__cause__.pgcode, e.__cause__.diag.message_detail]
        except DatabaseError as e:
            return [str(e)]
        return "deleted"

    def refused(self, write, *args):
        try:
            write(*args)
        except DatabaseError as e:
            return e.__cause__.pgcode
        return None

    def try_orphan(self):
        return self.refused(self.orphan)

    def order_of(self, id):
        return Order.objects.create(customer_id=id).id

    def try_order_of(self, id):
        return self.refused(self.order_of, id)

    def many(self, n):
        """Makes n customers, and in one statement an order of each."""
        made = Customer.objects.bulk_create([Customer(name="Eve", email="%d-%d@example.org" % (os.getpid(), i)) for i in range(int(n))])
        return len(Order.objects.bulk_create([Order(customer_id=c.id) for c in made]))

    def invoice_once(self, number, id):
        return Invoice.objects.get_or_create(number=number, defaults={"customer_id": id})[1]

    def pay(self, id):
        return Invoice.objects.filter(customer_id=id).delete()[0]

    def holders(self, id):
        """Counts what refers to a customer, and reviews of nobody."""
        return [m.objects.filter(customer_id=id).count() for m in (Order, Review, Invoice)] + [Review.objects.filter(customer_id=None).count()]
