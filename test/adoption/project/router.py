class Router:
    """Models of customers live in the database crm, all others in the default one."""

    def db_for_read(self, model, **hints):
        return "crm" if model._meta.app_label == "customers" else "default"

    db_for_write = db_for_read

    def allow_migrate(self, db, app_label, **hints):
        return (db == "crm") == (app_label == "customers")
