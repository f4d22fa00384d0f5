//! How connections to each database are set up.

use std::str::FromStr;

use sqlx::pool::PoolOptions;

use crate::error::Result;

use super::db::{Connection, database_error};
use super::pool::{Pair, StoreOptions};

pub(super) fn is_memory(url: &str) -> bool {
    url.contains(":memory:") || url.contains("mode=memory")
}

#[cfg(feature = "sqlite")]
pub(super) fn sqlite_pools(url: &str, options: &StoreOptions) -> Result<Pair<sqlx::Sqlite>> {
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
    let connect =
        SqliteConnectOptions::from_str(url).map_err(|e| database_error(format!("reading the URL {url}"), e))?;
    let connect = connect
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(options.connect_timeout)
        // Checkpoints write pages back one by one; rarer ones write hot pages once.
        .pragma("wal_autocheckpoint", "4000");
    let pool = |n| {
        // An idle connection costs nothing, and the only one to a database in memory is the database.
        let pool = PoolOptions::new().max_connections(n).acquire_timeout(options.connect_timeout);
        pool.idle_timeout(None).max_lifetime(None).test_before_acquire(false)
    };
    let writer = pool(1).connect_lazy_with(connect.clone());
    if is_memory(url) {
        return Ok(Pair { rest: writer.clone(), first: writer });
    }
    Ok(Pair { first: writer, rest: pool(options.max_connections.max(2) - 1).connect_lazy_with(connect) })
}

/// How many connections are kept for inserts: one flush at a time, and callers' single ones.
pub(super) fn insert_share(options: &StoreOptions) -> u32 {
    (options.max_connections / 4).max(1)
}

#[cfg(feature = "postgres")]
pub(super) fn postgres_options(
    url: &str,
) -> sqlx::Result<(sqlx::postgres::PgConnectOptions, sqlx::postgres::PgConnectOptions)> {
    let options = sqlx::postgres::PgConnectOptions::from_str(url)?.application_name("redrive");
    let with = |lock_timeout| {
        let settings = [
            ("lock_timeout", lock_timeout),
            ("default_transaction_isolation", "read committed"),
            // Every statement of ours goes by an index, whatever the statistics of a queue, which is empty at one moment and
            // has a million rows at the next, make the planner believe: one that joined by hash or read the whole table took
            // three seconds instead of ten milliseconds. Plans are then the same each time and need be made once.
            ("enable_seqscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("plan_cache_mode", "force_generic_plan"),
            ("jit", "off"),
        ];
        options.clone().options(settings).statement_cache_capacity(200)
    };
    Ok((with("50ms"), with("10s")))
}

#[cfg(feature = "postgres")]
pub(super) fn postgres_pools(url: &str, options: &StoreOptions) -> Result<Pair<sqlx::Postgres>> {
    let (first, rest) = postgres_options(url).map_err(|e| database_error("reading the database URL", e))?;
    let pool =
        |n| PoolOptions::new().max_connections(n).acquire_timeout(options.connect_timeout).test_before_acquire(false);
    let share = insert_share(options);
    Ok(Pair {
        first: pool(share).connect_lazy_with(first),
        rest: pool((options.max_connections - share).max(1)).connect_lazy_with(rest),
    })
}

#[cfg(feature = "mysql")]
pub(super) fn mysql_pools(url: &str, options: &StoreOptions) -> Result<Pair<sqlx::MySql>> {
    let connect =
        sqlx::mysql::MySqlConnectOptions::from_str(url).map_err(|e| database_error("reading the database URL", e))?;
    let connect = connect.statement_cache_capacity(200);
    let pool = |n, set_up: &'static str| {
        let pool =
            PoolOptions::new().max_connections(n).acquire_timeout(options.connect_timeout).test_before_acquire(false);
        pool.after_connect(move |c, _| {
            Box::pin(async move {
                let mut c = Connection::from(c);
                // MySQL and MariaDB spell the variable differently; both know the statement.
                c.script("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".into()).await?;
                c.script(set_up.into()).await
            })
        })
    };
    let share = insert_share(options);
    Ok(Pair {
        first: pool(share, "SET SESSION innodb_lock_wait_timeout = 1").connect_lazy_with(connect.clone()),
        rest: pool((options.max_connections - share).max(1), "SET SESSION innodb_lock_wait_timeout = 10")
            .connect_lazy_with(connect),
    })
}
