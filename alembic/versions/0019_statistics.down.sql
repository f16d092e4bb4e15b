DROP FUNCTION trails.refresh_statistics_v1();
