#!/usr/bin/python3
"""A shop in Django, which has never heard of db-controller: customers are in one database, orders in another one."""
import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
execute_from_command_line(sys.argv)
