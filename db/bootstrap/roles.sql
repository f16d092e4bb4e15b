-- The roles of the cluster. Another database of the same cluster may be preparing at this moment, so that
-- a role may appear between the question and the creation.
DO $$
DECLARE
    wanted record;
BEGIN
    FOR wanted IN
        SELECT * FROM (VALUES ('trails_owner', 'NOLOGIN'), ('trails_app', 'LOGIN'), ('trails_auditor', 'NOLOGIN'))
            AS r (name, login)
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted.name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I %s', wanted.name, wanted.login);
                IF wanted.name = 'trails_app' THEN
                    -- Who made the login, and nobody else, may give it a password.
                    PERFORM pg_catalog.set_config('trails.made_app_role', 'yes', true);
                END IF;
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    -- Who creates a role does not become it by that; a superuser may anyway.
    IF NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
        EXECUTE format('GRANT trails_owner TO %I', current_user);
    END IF;
END
$$;
