//! How connections to each database are set up.
//!
//! What follows is about one of them: a Galera cluster (MariaDB, Percona XtraDB), several servers that all take writes.
//!
//! *State.* None of ours. Each server has applied the cluster's commits up to some point, in one order that all have in common.
//!
//! *Invariants.* Two transactions on different servers that change the same row, neither having seen the other, do not both
//! commit: the later one fails at its COMMIT (1213) and is tried again. Every decision of the store ends in a write to the row
//! that it is about: claims and settles to the task's, beats and fences to the node's, turns, keys and locks to theirs. So
//! these compare-and-sets hold across servers, however far one of them lags.
//!
//! What a statement only reads is not protected in that way, and some of our reads matter: a claim and a settle look
//! whether their node is alive, a rescue looks who is dead, a settle looks for the claim that another connection made. On a
//! server that lags they would read the past: a node that was fenced a second ago could still settle (seen, with a big
//! transaction before the fence), an outcome could be called lost because its claim has not arrived. And while the others agree that a
//! server is gone, reads would go on and beats would not, so everybody would seem silent to everybody. So our
//! connections wait, before a statement or a transaction begins, until the server has applied what was committed anywhere
//! before (`wsrep_sync_wait`): a statement that begins after a fence sees it, as on a single server. That costs a round
//! trip between the servers for each. Elsewhere the setting does nothing, or is unknown.
//!
//! *Failure.* A server that has lost the majority, or has not caught up yet, refuses statements (1047) and is passed over when
//! a host is looked for. After a server has died the others stop for some seconds to agree on that; statements wait.

use std::str::FromStr;

use sqlx::ConnectOptions as _;
use sqlx::pool::PoolOptions;

use crate::error::Result;

use super::db::{Connection, database_error};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use super::pool::Business;
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
        .pragma("wal_autocheckpoint", "4000")
        .disable_statement_logging();
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

/// And how many are for everything else.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn other_share(options: &StoreOptions) -> u32 {
    options.max_connections.saturating_sub(insert_share(options)).max(1)
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
        options.clone().options(settings).statement_cache_capacity(200).disable_statement_logging()
    };
    Ok((with("50ms"), with("10s")))
}

#[cfg(feature = "postgres")]
pub(super) fn postgres_pools(url: &str, options: &StoreOptions) -> Result<Pair<sqlx::Postgres>> {
    let (first, rest) = postgres_options(url).map_err(|e| database_error("reading the database URL", e))?;
    let pool =
        |n| PoolOptions::new().max_connections(n).acquire_timeout(options.connect_timeout).test_before_acquire(false);
    Ok(Pair {
        first: pool(insert_share(options)).connect_lazy_with(first),
        rest: pool(other_share(options)).connect_lazy_with(rest),
    })
}

/// How many statements a connection keeps prepared on the server, which limits those of all its clients together
/// (`max_prepared_stmt_count`, 16,382). See docs/operate/deployment.md.
#[cfg(feature = "mysql")]
const MYSQL_STATEMENTS: usize = 64;

#[cfg(feature = "mysql")]
pub(super) fn mysql_options(url: &str) -> sqlx::Result<sqlx::mysql::MySqlConnectOptions> {
    let options = sqlx::mysql::MySqlConnectOptions::from_str(url)?;
    Ok(options.statement_cache_capacity(MYSQL_STATEMENTS).disable_statement_logging())
}

#[cfg(feature = "mysql")]
pub(super) fn mysql_pools(url: &str, options: &StoreOptions) -> Result<Pair<sqlx::MySql>> {
    let connect = mysql_options(url).map_err(|e| database_error("reading the database URL", e))?;
    let pool = |n, set_up: &'static str| {
        let pool =
            PoolOptions::new().max_connections(n).acquire_timeout(options.connect_timeout).test_before_acquire(false);
        pool.after_connect(move |c, _| {
            Box::pin(async move {
                let mut c = Connection::from(c);
                // MySQL and MariaDB spell the variable differently; both know the statement.
                c.script("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".into()).await?;
                read_what_is_committed(&mut c).await?;
                c.script(set_up.into()).await
            })
        })
    };
    let first = pool(insert_share(options), "SET SESSION innodb_lock_wait_timeout = 1");
    let rest = pool(other_share(options), "SET SESSION innodb_lock_wait_timeout = 10");
    Ok(Pair { first: first.connect_lazy_with(connect.clone()), rest: rest.connect_lazy_with(connect) })
}

/// A pool for a database that is not ours.
fn business_pool<DB: sqlx::Database>(options: &StoreOptions) -> PoolOptions<DB> {
    // It may be idle for long: then the application's server has its connections back.
    PoolOptions::new().max_connections(options.max_connections).acquire_timeout(options.connect_timeout)
}

#[cfg(feature = "sqlite")]
pub(super) fn business_sqlite(url: &str, options: &StoreOptions) -> Result<Pair<sqlx::Sqlite>> {
    let connect = sqlx::sqlite::SqliteConnectOptions::from_str(url)
        .map_err(|e| database_error(format!("reading the URL {url}"), e))?
        .busy_timeout(options.connect_timeout)
        .disable_statement_logging();
    let pool = business_pool(options).connect_lazy_with(connect);
    Ok(Pair { first: pool.clone(), rest: pool })
}

#[cfg(feature = "postgres")]
pub(super) fn business_postgres_options(url: &str) -> sqlx::Result<sqlx::postgres::PgConnectOptions> {
    let options = sqlx::postgres::PgConnectOptions::from_str(url)?;
    Ok(options.application_name("redrive guard").options([("lock_timeout", "10s")]).disable_statement_logging())
}

#[cfg(feature = "postgres")]
pub(super) fn business_postgres(url: &str, options: &StoreOptions, b: &Business) -> Result<Pair<sqlx::Postgres>> {
    let connect = business_postgres_options(url).map_err(|e| database_error("reading the database URL", e))?;
    let zone = b.time_zone.clone();
    let pool = business_pool(options).after_connect(move |c, _| {
        let zone = zone.clone();
        Box::pin(async move { Connection::from(c).row(super::db::query(POSTGRES_ZONE).bind(zone)).await.map(|_| ()) })
    });
    let pool = pool.connect_lazy_with(connect);
    Ok(Pair { first: pool.clone(), rest: pool })
}

/// sqlx asks for UTC, after which the server does not say any more what its own zone is. It is what was set for the login or
/// the database, else most likely that of its log, which is set together with it when a server is set up.
#[cfg(feature = "postgres")]
const POSTGRES_ZONE: &str = "SELECT set_config('TimeZone', COALESCE(CAST(? AS text), ( \
     SELECT substr(s, strpos(s, '=') + 1) FROM pg_db_role_setting, unnest(setconfig) AS s \
     WHERE lower(split_part(s, '=', 1)) = 'timezone' \
     AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())) \
     AND setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = session_user)) \
     ORDER BY setrole <> 0 DESC, setdatabase <> 0 DESC LIMIT 1), current_setting('log_timezone')), false)";

#[cfg(feature = "mysql")]
pub(super) fn business_mysql_options(url: &str, b: &Business) -> sqlx::Result<sqlx::mysql::MySqlConnectOptions> {
    // Without a zone of ours it is the server's own, not sqlx's UTC.
    Ok(sqlx::mysql::MySqlConnectOptions::from_str(url)?.timezone(b.time_zone.clone()).disable_statement_logging())
}

#[cfg(feature = "mysql")]
pub(super) fn business_mysql(url: &str, options: &StoreOptions, b: &Business) -> Result<Pair<sqlx::MySql>> {
    let connect = business_mysql_options(url, b).map_err(|e| database_error("reading the database URL", e))?;
    let pool = business_pool(options).after_connect(|c, _| {
        Box::pin(async move {
            let mut c = Connection::from(c);
            c.script("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".into()).await?;
            c.script("SET SESSION innodb_lock_wait_timeout = 10".into()).await
        })
    });
    let pool = pool.connect_lazy_with(connect);
    Ok(Pair { first: pool.clone(), rest: pool })
}

/// Bit 1: before SELECT and the begin of a transaction; bit 2: before UPDATE and DELETE. (4, before INSERT, is not needed: a
/// key that is there already is found when it commits.)
#[cfg(feature = "mysql")]
const BEFORE_READS_AND_UPDATES: u8 = 3;

/// From now on this connection sees what was committed before, on whichever server.
#[cfg(feature = "mysql")]
pub(super) async fn read_what_is_committed(c: &mut Connection<'_>) -> sqlx::Result<()> {
    match c.script(format!("SET SESSION wsrep_sync_wait = {BEFORE_READS_AND_UPDATES}")).await {
        Err(e) if is_unknown_variable(&e) => Ok(()), // MySQL without Galera
        result => result,
    }
}

/// Whether the server takes part in its cluster; a server without one is ready.
#[cfg(feature = "mysql")]
pub(super) async fn is_ready(c: &mut Connection<'_>) -> sqlx::Result<bool> {
    let is_member = is_on(c, "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'").await?;
    Ok(!is_member || is_on(c, "SHOW GLOBAL STATUS LIKE 'wsrep_ready'").await?)
}

#[cfg(feature = "mysql")]
async fn is_on(c: &mut Connection<'_>, sql: &'static str) -> sqlx::Result<bool> {
    let row = c.row(super::db::query(sql)).await?;
    Ok(row.map(|row| row.columns().skip(1).text().map(|value| value == "ON")).transpose()?.unwrap_or(false))
}

#[cfg(feature = "mysql")]
fn is_unknown_variable(e: &sqlx::Error) -> bool {
    let sqlx::Error::Database(d) = e else { return false };
    d.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().is_some_and(|e| e.number() == 1193)
}
