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

use crate::error::{Error, Fault, Result};

use super::db::{Connection, Dialect, fault, query};
use super::pool::{Pools, Use};
use super::retry::{Scope, retrying};

/// The schema that this binary knows.
pub(super) const VERSION: i64 = 8;
/// The oldest schema version whose binaries can work on [`VERSION`].
const COMPATIBLE_WITH: i64 = 1;

/// One step from a version to the next.
const MIGRATIONS: [&str; VERSION as usize] = [
    include_str!("../../migrations/0001_base.sql"),
    include_str!("../../migrations/0002_notice.sql"),
    include_str!("../../migrations/0003_table.sql"),
    include_str!("../../migrations/0004_people.sql"),
    include_str!("../../migrations/0005_saga.sql"),
    include_str!("../../migrations/0006_history.sql"),
    include_str!("../../migrations/0007_lease.sql"),
    include_str!("../../migrations/0008_gate.sql"),
];

/// Brings the schema up to date, or says why that cannot be.
pub(super) async fn migrate(pools: &Pools) -> Result<()> {
    let doing = format!("bringing the schema of {} up to date", pools.shown());
    if check(pools, &doing).await? == Some(VERSION) {
        return Ok(());
    }
    retrying!(pools, Use::Schema, scope(pools.dialect()), &doing, |c, _| {
        lock(c).await?;
        let done = upgrade(c).await;
        unlock(c, done).await
    })?;
    check(pools, &doing).await.map(|_| ())
}

/// How far a change of the schema reaches: MySQL's commit by themselves.
pub(super) fn scope(dialect: Dialect) -> Scope {
    if dialect == Dialect::MySql { Scope::Statement } else { Scope::Transaction }
}

/// Lets one node at a time change the schema. On MySQL the lock is the connection's and goes with it, elsewhere it ends with
/// the transaction.
pub(super) async fn lock(c: &mut Connection<'_>) -> sqlx::Result<()> {
    match c.dialect() {
        Dialect::Sqlite => Ok(()), // a transaction has the only writer
        Dialect::Postgres => {
            // Waiting for another node's migration may take longer than for a row.
            c.script("SET LOCAL lock_timeout = '5min'; SELECT pg_advisory_xact_lock(7230531764420853)".into()).await
        }
        Dialect::MySql => {
            let lock = "SELECT GET_LOCK(CONCAT('redrive_migrate_', LEFT(SHA2(DATABASE(), 256), 16)), 300)";
            match c.row(query(lock)).await?.map(|row| row.columns().opt_int()).transpose()?.flatten() {
                Some(1) => Ok(()),
                _ => Err(sqlx::Error::Protocol("another node's migration did not end in 5 minutes".into())),
            }
        }
    }
}

pub(super) async fn unlock<T>(c: &mut Connection<'_>, result: sqlx::Result<T>) -> sqlx::Result<T> {
    if c.dialect() == Dialect::MySql {
        c.row(query("SELECT RELEASE_LOCK(CONCAT('redrive_migrate_', LEFT(SHA2(DATABASE(), 256), 16)))")).await?;
    }
    result
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
        dialect,
    ))
    .await?;
    let (found, compatible_with) = version(c).await?.unwrap_or((0, COMPATIBLE_WITH));
    for (i, migration) in MIGRATIONS.iter().enumerate() {
        let to = i as i64 + 1;
        if to <= found {
            continue;
        }
        for statement in statements(migration) {
            for statement in for_each_table(c, &statement, found).await? {
                run_statement(c, &render(&statement, dialect)).await?;
            }
        }
        c.execute(query("DELETE FROM redrive_schema")).await?;
        let row = query("INSERT INTO redrive_schema (one, version, compatible_with) VALUES (1, ?, ?)");
        c.execute(row.bind(to).bind(compatible_with.max(COMPATIBLE_WITH))).await?;
    }
    Ok(())
}

/// A statement about the tables of tasks, or of the archive, is for each of them.
async fn for_each_table(c: &mut Connection<'_>, statement: &str, found: i64) -> sqlx::Result<Vec<String>> {
    let mut all = vec![statement.replace("{task}", "retry_task").replace("{archive}", "retry_archive")];
    let kinds = [("{task}", "task"), ("{archive}", "archive")];
    let Some((token, kind)) = kinds.into_iter().find(|(token, _)| statement.contains(token)) else { return Ok(all) };
    if found >= 3 && !statement.contains("{view}") {
        let names = query("SELECT name FROM redrive_table WHERE kind = ? AND month > 0").bind(kind);
        for row in c.rows(names).await? {
            all.push(statement.replace(token, row.columns().text()?));
        }
    }
    Ok(all)
}

/// Binaries that know nothing of monthly tables must not start any more.
pub(super) async fn require_monthly(c: &mut Connection<'_>) -> sqlx::Result<()> {
    c.execute(query("UPDATE redrive_schema SET compatible_with = 3 WHERE compatible_with < 3")).await.map(|_| ())
}

/// Makes a table like one of the schema's: `token` is `{task}` or `{archive}`.
pub(super) async fn make_like(c: &mut Connection<'_>, token: &str, name: &str) -> sqlx::Result<()> {
    let of_table = |s: &String| s.contains(token) && !s.contains("{view}");
    for statement in MIGRATIONS.iter().flat_map(|migration| statements(migration)).filter(of_table) {
        run_statement(c, &render(&statement.replace(token, name), c.dialect())).await?;
    }
    Ok(())
}

/// Makes a table of the schema in a database that may have no other. Several may do so at once.
pub(crate) async fn make_alone(c: &mut Connection<'_>, table: &str) -> sqlx::Result<()> {
    let dialect = c.dialect();
    if dialect == Dialect::Postgres {
        // There, IF NOT EXISTS fails for one of two who create at once. The lock is that of migrations; statements that are sent together are
        // one transaction if none is open.
        return c
            .script(format!("SELECT pg_advisory_xact_lock(7230531764420853);\n{}", script_of(table, dialect)))
            .await;
    }
    for statement in statements_of(table, dialect) {
        run_statement(c, &statement).await?;
    }
    Ok(())
}

/// The statements that make a table of the schema, as one text.
pub(crate) fn script_of(table: &str, dialect: Dialect) -> String {
    statements_of(table, dialect).iter().map(|statement| format!("{};\n", statement.trim())).collect()
}

fn statements_of(table: &str, dialect: Dialect) -> Vec<String> {
    let all = MIGRATIONS.iter().flat_map(|migration| statements(migration));
    all.filter(|s| s.contains(table)).map(|s| render(&s, dialect)).collect()
}

/// The view of all tasks for people, over these tables. `false`: somebody reads it, perhaps for long (a backup), so it stays as
/// it was. Tasks must not wait for that.
pub(super) async fn view_tasks(c: &mut Connection<'_>, tables: &[String]) -> sqlx::Result<bool> {
    let is_view = |s: &String| s.contains("{view} {task}_readable");
    let Some(view) = MIGRATIONS.iter().flat_map(|migration| statements(migration)).find(is_view) else {
        return Ok(true); // the base schema has it
    };
    let (head, select) = view.split_once(" AS SELECT").unwrap_or((&view, ""));
    let selects: Vec<_> = tables.iter().map(|table| format!("SELECT {}", select.replace("{task}", table))).collect();
    let head = head.replace("{task}", "retry_task");
    let (before, undo, after) = match c.dialect() {
        Dialect::Sqlite => ("DROP VIEW IF EXISTS retry_task_readable", "", ""),
        Dialect::Postgres => {
            let back = "SET LOCAL lock_timeout = '5min'";
            ("SAVEPOINT redrive_view; SET LOCAL lock_timeout = '1s'", "ROLLBACK TO SAVEPOINT redrive_view", back)
        }
        Dialect::MySql => ("SET SESSION lock_wait_timeout = 1", "", "SET SESSION lock_wait_timeout = DEFAULT"),
    };
    c.script(before.into()).await?;
    let made = run_statement(c, &render(&format!("{head} AS {}", selects.join(" UNION ALL ")), c.dialect())).await;
    for statement in [if made.is_err() { undo } else { "" }, after].into_iter().filter(|s| !s.is_empty()) {
        c.script(statement.into()).await?;
    }
    match made {
        Err(e) if fault(&e) == Fault::Busy => Ok(false),
        made => made.map(|()| true),
    }
}

/// The statements of a script, without its comments.
fn statements(script: &str) -> Vec<String> {
    let code: String =
        script.lines().filter(|line| !line.trim_start().starts_with("--")).map(|line| format!("{line}\n")).collect();
    code.split(";\n").filter(|s| !s.trim().is_empty()).map(str::to_owned).collect()
}

async fn run_statement(c: &mut Connection<'_>, statement: &str) -> sqlx::Result<()> {
    match c.script(statement.to_owned()).await {
        // MySQL has no CREATE INDEX IF NOT EXISTS, and neither MySQL nor SQLite has ADD COLUMN IF NOT EXISTS. An interrupted
        // migration finds its own index or column.
        Err(sqlx::Error::Database(d)) if is_there_already(d.as_ref()) => Ok(()),
        result => result,
    }
}

fn is_there_already(e: &dyn sqlx::error::DatabaseError) -> bool {
    #[cfg(feature = "mysql")]
    if let Some(e) = e.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return matches!(e.number(), 1060 | 1061);
    }
    // SQLite has no code of its own for this.
    e.message().starts_with("duplicate column name")
}

/// Fills in what the databases spell differently.
fn render(sql: &str, dialect: Dialect) -> String {
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
    let sql = plain.iter().fold(sql.to_owned(), |sql, (token, text)| sql.replace(token, text));
    let time = |column: &str| match dialect {
        Sqlite => format!("strftime('%Y-%m-%dT%H:%M:%fZ', {column} / 1000.0, 'unixepoch')"),
        Postgres => format!("to_timestamp({column} / 1000.0)"),
        MySql => format!("FROM_UNIXTIME({column} / 1000)"),
    };
    let sql = expand(&sql, "{at:", |column| format!("{} AS {column}", time(column)));
    let sql = expand(&sql, "{time:", time);
    let sql = expand(&sql, "{roomy:", |table| match dialect {
        Postgres => format!("ALTER TABLE {table} SET (fillfactor = 50)"),
        Sqlite | MySql => "SELECT 1".into(), // they change rows in place
    });
    let add_column = pick("ADD COLUMN", "ADD COLUMN IF NOT EXISTS", "ADD COLUMN");
    let sql = expand(&sql, "{column:", |column| {
        let (table, definition) = column.split_once(' ').unwrap_or((column, ""));
        format!("ALTER TABLE {table} {add_column} {definition}")
    });
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
