-- Without statistics PostgreSQL takes the wrong index where several begin with the tenant, and reads all rows of it for
-- each look-up. Autovacuum gathers them a minute after a table was filled, or not at all: after a restore, or a crash,
-- it knows of no change. So the service asks for it; to ANALYZE is the owner's right.

-- Gathers the statistics of one table that lacks them, and returns its name; NULL when there is none, so that it is
-- cheap to ask. A table lacks them from four pages on, when it was never looked at or has grown to four times what it
-- was then: less often the larger it is, and plans that sessions keep are made anew each time. Never waits for long,
-- and never for a table on which somebody else (autovacuum, another process of the service) is at work.
CREATE FUNCTION trails.refresh_statistics_v1() RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
AS $$
DECLARE
    page   integer := current_setting('block_size');
    lacking record;
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN NULL;
    END IF;
    FOR lacking IN
        SELECT c.relname, format('%I.%I', 'trails', c.relname) AS called
          FROM pg_class AS c
         CROSS JOIN LATERAL (SELECT pg_relation_size(c.oid) / page AS pages OFFSET 0) AS now
         WHERE c.relnamespace = 'trails'::regnamespace AND c.relkind = 'r' AND now.pages >= 4
           AND (c.reltuples < 0 OR now.pages >= 4 * c.relpages
                -- To make an index, as a restore does last, counts the rows and says nothing of what they hold.
                OR current_setting('track_counts')::boolean
                   AND pg_stat_get_last_analyze_time(c.oid) IS NULL
                   AND pg_stat_get_last_autoanalyze_time(c.oid) IS NULL)
         ORDER BY now.pages
    LOOP
        BEGIN
            EXECUTE format('LOCK TABLE %s IN SHARE UPDATE EXCLUSIVE MODE NOWAIT', lacking.called);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
        EXECUTE format('ANALYZE %s', lacking.called);
        RETURN lacking.relname;
    END LOOP;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION trails.refresh_statistics_v1() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trails.refresh_statistics_v1() TO trails_app;
