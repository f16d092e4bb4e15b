DROP TABLE trails.webhook_progress;
DROP TABLE trails.webhooks;
