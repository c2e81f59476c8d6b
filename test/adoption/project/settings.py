import os


def database(name):
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ[name],
        "HOST": os.environ.get("DB_HOST", ""),
        "PORT": os.environ.get("DB_PORT", ""),
        "USER": os.environ.get("DB_USER", ""),
        "PASSWORD": os.environ.get("DB_PASSWORD", ""),
    }


SECRET_KEY = "only for a test"
INSTALLED_APPS = ["customers", "store"]
DATABASES = {"default": database("SHOP_DB"), "crm": database("CRM_DB")}
DATABASE_ROUTERS = ["project.router.Router"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
