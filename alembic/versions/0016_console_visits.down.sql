DROP TABLE trails.console_visit_ends;
DROP TABLE trails.console_visits;
