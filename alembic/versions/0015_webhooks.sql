-- Webhooks: where a tenant's records are told to, and how far that is. Which of them are in force the records of
-- the tenant's administration say.

-- What was set up; never changed. Address and secret are sealed under the master key together with what they
-- belong to: a row that was written or changed by SQL is no webhook.
CREATE TABLE trails.webhooks (
    tenant_id  uuid        NOT NULL,
    webhook_id text        COLLATE "C" NOT NULL,
    name       text        NOT NULL,
    kinds      text[],
    agents     text[],
    sealed     bytea       NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT webhooks_pkey PRIMARY KEY (tenant_id, webhook_id),
    CONSTRAINT webhooks_webhook_id_format CHECK (webhook_id ~ '^[0-9a-f]{16}$'),
    CONSTRAINT webhooks_name_length CHECK (char_length(name) BETWEEN 1 AND 64)
);

-- How far the telling is: a note in pencil, no evidence, and the only rows that the service changes. The cursor is
-- sealed. One server process at a time holds a webhook, until lease_until.
CREATE TABLE trails.webhook_progress (
    tenant_id     uuid        NOT NULL,
    webhook_id    text        COLLATE "C" NOT NULL,
    cursor        text        NOT NULL,
    told_at       timestamptz NOT NULL,
    delivered     bigint      NOT NULL,
    failures      bigint      NOT NULL,
    failing_since timestamptz,
    problem       text,
    next_at       timestamptz NOT NULL,
    lease_until   timestamptz NOT NULL,
    holder        uuid,
    CONSTRAINT webhook_progress_pkey PRIMARY KEY (tenant_id, webhook_id)
);
CREATE INDEX webhook_progress_due ON trails.webhook_progress (next_at);

CREATE TRIGGER refuse_change_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON trails.webhooks
    FOR EACH STATEMENT EXECUTE FUNCTION trails.refuse_change_v1();
CREATE TRIGGER refuse_change_row BEFORE UPDATE OR DELETE ON trails.webhooks
    FOR EACH ROW EXECUTE FUNCTION trails.refuse_change_v1();
ALTER TABLE trails.webhooks
    ENABLE ALWAYS TRIGGER refuse_change_statement, ENABLE ALWAYS TRIGGER refuse_change_row;

ALTER TABLE trails.webhooks ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE trails.webhook_progress ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;

CREATE POLICY app_reads ON trails.webhooks FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.webhooks FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_reads ON trails.webhook_progress FOR SELECT TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_appends ON trails.webhook_progress FOR INSERT TO trails_app
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));
CREATE POLICY app_notes ON trails.webhook_progress FOR UPDATE TO trails_app
    USING (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]))
    WITH CHECK (tenant_id = ANY (string_to_array(nullif(current_setting('trails.tenants', true), ''), ',')::uuid[]));

-- Whoever delivers looks for what is due among all tenants: a transaction that says so sees how far each is.
CREATE POLICY app_lists ON trails.webhook_progress FOR SELECT TO trails_app
    USING (current_setting('trails.all_tenants', true) = 'listed');

GRANT SELECT, INSERT ON trails.webhooks, trails.webhook_progress TO trails_app;
GRANT UPDATE (cursor, told_at, delivered, failures, failing_since, problem, next_at, lease_until, holder)
    ON trails.webhook_progress TO trails_app;

COMMENT ON TABLE trails.webhooks IS
    'Where records are told to; address and secret are sealed with what they belong to.';
COMMENT ON TABLE trails.webhook_progress IS
    'How far each webhook is: no evidence; the one table whose rows the service changes.';
