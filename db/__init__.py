"""The database: tables, migrations, and the only statements that touch the trail."""
