package migrations

var UpBesideWriters = upBesideWriters
