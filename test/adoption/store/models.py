from django.db import models


class Order(models.Model):
    customer_id = models.BigIntegerField(db_index=True)  # of customers.Customer, in another database
    state = models.CharField(max_length=20, default="new")
    total = models.IntegerField(default=0)


class Line(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE)
    article = models.CharField(max_length=100)


class Review(models.Model):
    customer_id = models.BigIntegerField(null=True, db_index=True)
    stars = models.IntegerField()


class Invoice(models.Model):
    number = models.CharField(max_length=20, primary_key=True)
    customer_id = models.BigIntegerField(db_index=True)
