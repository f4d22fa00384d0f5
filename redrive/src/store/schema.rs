//! The schema: created and brought up to date by whichever node comes first.
//!
//! *State.* `redrive_schema` has one row: the version of the schema, and the oldest version whose binaries can work
//! with it.
//!
//! *Invariants.* Migrations run under a lock of the database, so two nodes may start at once. Each is repeatable: MySQL
//! cannot roll back schema changes. Upgrades go in two steps (expand, then contract): a binary accepts a schema newer than
//! its own as long as that says it is compatible, so old nodes can restart during a rollout.
//!
//! *Failure.* A schema that this binary cannot use is refused with a message that says what to do; nothing is changed.

use crate::error::{Error, Result};

use super::db::{Connection, Dialect, query};
use super::pool::{Pools, Use};
use super::retry::{Scope, retrying};

/// The schema that this binary knows.
pub(super) const VERSION: i64 = 2;
/// The oldest schema version whose binaries can work on [`VERSION`].
const COMPATIBLE_WITH: i64 = 1;

/// The task table of the single layout.
pub(super) const TASK_TABLE: &str = "retry_task";

/// One step from a version to the next.
const MIGRATIONS: [&str; VERSION as usize] =
    [include_str!("../../migrations/0001_base.sql"), include_str!("../../migrations/0002_notice.sql")];

/// Brings the schema up to date, or says why that cannot be.
pub(super) async fn migrate(pools: &Pools) -> Result<()> {
    let doing = format!("bringing the schema of {} up to date", pools.shown());
    if check(pools, &doing).await? == Some(VERSION) {
        return Ok(());
    }
    match pools.dialect() {
        // Schema changes are transactional; the lock ends with the transaction.
        Dialect::Sqlite | Dialect::Postgres => {
            retrying!(pools, Use::Write, Scope::Transaction, &doing, |c, _| {
                if c.dialect() == Dialect::Postgres {
                    // Waiting for another node's migration may take longer than for a row.
                    c.script("SET LOCAL lock_timeout = '5min'; SELECT pg_advisory_xact_lock(7230531764420853)".into())
                        .await?;
                }
                upgrade(c).await
            })
        }
        // They commit by themselves; the lock is the connection's, and goes with it.
        Dialect::MySql => {
            retrying!(pools, Use::Write, Scope::Statement, &doing, |c, _| {
                let lock = "SELECT GET_LOCK(CONCAT('redrive_migrate_', LEFT(MD5(DATABASE()), 16)), 300)";
                if c.row(query(lock)).await?.map(|row| row.columns().opt_int()).transpose()?.flatten() != Some(1) {
                    return Err(sqlx::Error::Protocol("another node's migration did not end in 5 minutes".into()));
                }
                let result = upgrade(c).await;
                c.row(query("SELECT RELEASE_LOCK(CONCAT('redrive_migrate_', LEFT(MD5(DATABASE()), 16)))")).await?;
                result
            })
        }
    }?;
    check(pools, &doing).await.map(|_| ())
}

/// Without migrating: the schema must be there and usable.
pub(super) async fn require(pools: &Pools) -> Result<()> {
    let doing = format!("looking at the schema of {}", pools.shown());
    match check(pools, &doing).await? {
        Some(version) if version >= VERSION => Ok(()),
        Some(version) => Err(Error::Schema(format!(
            "{doing}: it has version {version}, this redrive needs {VERSION}; run `redrive migrate`"
        ))),
        None => Err(Error::Schema(format!("{doing}: there is none; run `redrive migrate`"))),
    }
}

/// The schema's version, if there is a schema; an error if this binary cannot work with it.
async fn check(pools: &Pools, doing: &str) -> Result<Option<i64>> {
    let found = retrying!(pools, Use::Read, Scope::Statement, doing, |c, _| version(c).await)?;
    match found {
        Some((version, compatible_with)) if version > VERSION && compatible_with > VERSION => {
            Err(Error::Schema(format!(
                "{doing}: it has version {version}, which this redrive (schema {VERSION}) cannot use; upgrade redrive to a version with \
             schema {compatible_with} or later"
            )))
        }
        found => Ok(found.map(|(version, _)| version)),
    }
}

/// Version and compatibility, `None` in an empty database.
async fn version(c: &mut Connection<'_>) -> sqlx::Result<Option<(i64, i64)>> {
    let exists = match c.dialect() {
        Dialect::Sqlite => "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = 'redrive_schema'",
        Dialect::Postgres => "SELECT COUNT(*) FROM pg_class WHERE oid = to_regclass('redrive_schema')",
        Dialect::MySql => {
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'redrive_schema'"
        }
    };
    if c.row(query(exists)).await?.map(|row| row.int()).transpose()? == Some(0) {
        return Ok(None);
    }
    let row = c.row(query("SELECT version, compatible_with FROM redrive_schema WHERE one = 1")).await?;
    row.map(|row| {
        let mut columns = row.columns();
        Ok((columns.int()?, columns.int()?))
    })
    .transpose()
}

/// Runs what is missing. Under the lock.
async fn upgrade(c: &mut Connection<'_>) -> sqlx::Result<()> {
    let dialect = c.dialect();
    c.script(render(
        "CREATE TABLE IF NOT EXISTS redrive_schema \
         (one INT NOT NULL PRIMARY KEY, version BIGINT NOT NULL, compatible_with BIGINT NOT NULL) {options}",
        TASK_TABLE,
        dialect,
    ))
    .await?;
    let found = version(c).await?.map_or(0, |(version, _)| version);
    for (i, migration) in MIGRATIONS.iter().enumerate() {
        let to = i as i64 + 1;
        if to <= found {
            continue;
        }
        for statement in render(migration, TASK_TABLE, dialect).split(";\n") {
            if !statement.trim().is_empty() {
                run_statement(c, statement).await?;
            }
        }
        c.execute(query("DELETE FROM redrive_schema")).await?;
        let row = query("INSERT INTO redrive_schema (one, version, compatible_with) VALUES (1, ?, ?)");
        c.execute(row.bind(to).bind(COMPATIBLE_WITH)).await?;
    }
    Ok(())
}

async fn run_statement(c: &mut Connection<'_>, statement: &str) -> sqlx::Result<()> {
    match c.script(statement.to_owned()).await {
        // MySQL has no CREATE INDEX IF NOT EXISTS; an interrupted migration finds its own index.
        Err(sqlx::Error::Database(d)) if is_duplicate_index(d.as_ref()) => Ok(()),
        result => result,
    }
}

fn is_duplicate_index(e: &dyn sqlx::error::DatabaseError) -> bool {
    #[cfg(feature = "mysql")]
    return e.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().is_some_and(|e| e.number() == 1061);
    #[cfg(not(feature = "mysql"))]
    false
}

/// Fills in what the databases spell differently.
fn render(sql: &str, task_table: &str, dialect: Dialect) -> String {
    use Dialect::{MySql, Postgres, Sqlite};
    let pick = |sqlite, postgres, mysql| match dialect {
        Sqlite => sqlite,
        Postgres => postgres,
        MySql => mysql,
    };
    // Compared by bytes: a key that differs in case or accents is another key.
    let innodb = "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin";
    // Half-filled pages leave room for the new version of a claimed row beside the old one (HOT), and a queue's dead
    // rows want collecting early.
    let hot = "WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000)";
    let plain = [
        ("{task}", task_table),
        // In SQLite this makes the id the row's own number: one tree instead of two.
        ("{id}", pick("INTEGER PRIMARY KEY", "BIGINT PRIMARY KEY", "BIGINT NOT NULL PRIMARY KEY")),
        ("{text}", pick("TEXT", "TEXT", "LONGTEXT")),
        ("{hash}", pick("BLOB", "BYTEA", "BINARY(16)")),
        ("{hot}", pick("", hot, innodb)),
        ("{keyed}", pick("WITHOUT ROWID", "", innodb)),
        ("{beats}", pick("", "WITH (fillfactor = 50)", innodb)),
        ("{options}", pick("", "", innodb)),
        ("{view}", pick("CREATE VIEW IF NOT EXISTS", "CREATE OR REPLACE VIEW", "CREATE OR REPLACE VIEW")),
    ];
    let sql: String =
        sql.lines().filter(|line| !line.trim_start().starts_with("--")).map(|line| format!("{line}\n")).collect();
    let sql = plain.iter().fold(sql, |sql, (token, text)| sql.replace(token, text));
    let time = |column: &str| match dialect {
        Sqlite => format!("strftime('%Y-%m-%dT%H:%M:%fZ', {column} / 1000.0, 'unixepoch')"),
        Postgres => format!("to_timestamp({column} / 1000.0)"),
        MySql => format!("FROM_UNIXTIME({column} / 1000)"),
    };
    let sql = expand(&sql, "{at:", |column| format!("{} AS {column}", time(column)));
    let sql = expand(&sql, "{time:", time);
    let create_index = pick("CREATE INDEX IF NOT EXISTS", "CREATE INDEX IF NOT EXISTS", "CREATE INDEX");
    expand(&sql, "{index:", |index| format!("{create_index} {index}"))
}

/// Replaces `{token:argument}`.
fn expand(sql: &str, token: &str, with: impl Fn(&str) -> String) -> String {
    let mut parts = sql.split(token);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (argument, rest) = part.split_once('}').unwrap_or((part, ""));
        out += &with(argument);
        out += rest;
    }
    out
}
