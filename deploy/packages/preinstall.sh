#!/bin/sh
# The user of the units.
set -e
getent passwd db-controller > /dev/null || useradd --system --user-group --home-dir / --no-create-home --shell /usr/sbin/nologin db-controller
