//! The columns of a guarded table: what is there, what is missing, what is of the wrong type; and adding what is missing.
//!
//! Several nodes may start at once. Adding is a loop of looking and adding: a column that someone else has added meanwhile is
//! found at the next look. Without the right to change the table, the error has the statements to run.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::store::db::Dialect;
use crate::store::pool::Use;
use crate::store::retry::{Scope, retrying};

use super::Shared;
use super::business::Db;
use super::catalogue::{Catalogue, Column, quoted};
use super::config::Guard;
use super::value::Holds;

/// One of the nine columns that a guard keeps in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrColumn {
    /// Its name.
    pub name: &'static str,
    /// Whether it holds a datetime; else an integer.
    pub is_time: bool,
    /// Its comment in the database.
    pub comment: &'static str,
}

const fn int(name: &'static str, comment: &'static str) -> ErrColumn {
    ErrColumn { name, is_time: false, comment }
}

const fn time(name: &'static str, comment: &'static str) -> ErrColumn {
    ErrColumn { name, is_time: true, comment }
}

/// The nine columns.
pub const ERR_COLUMNS: [ErrColumn; 9] = [
    int("err_status", "异常主状态"),
    time("err_start_time", "首次异常时间"),
    int("err_retry_count", "已重试次数"),
    time("err_next_retry_time", "下次允许自动重试时间"),
    int("err_min_interval", "最小重试间隔（秒）"),
    int("err_timeout", "最大处理窗口（秒）"),
    int("err_submit_manual_status", "人工处理状态"),
    time("err_next_remind_staff_time", "下次提醒人工时间"),
    int("err_manual_notify_count", "通知人工次数"),
];

/// What a look at a table has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The table, as the guard names it.
    pub table: String,
    /// `err_*` columns that are not there.
    pub missing_columns: Vec<String>,
    /// What keeps the guard from working: no such table, no such column, columns of wrong types.
    pub problems: Vec<String>,
    /// Whether the index that the scans need is not there. They work without it, by reading the whole table.
    pub missing_index: bool,
    /// The statements that add what is missing.
    pub sql: Vec<String>,
}

impl Inspection {
    /// Whether nothing is missing and nothing is wrong.
    pub fn is_fine(&self) -> bool {
        self.missing_columns.is_empty() && self.problems.is_empty() && !self.missing_index
    }
}

impl Catalogue {
    pub(super) fn inspect(&self, guard: &Guard, dialect: Dialect) -> Inspection {
        let table = guard.table.clone();
        if self.columns.is_empty() {
            let problems = vec![format!("there is no table {table} (its name is taken as it is written)")];
            return Inspection { table, problems, ..Inspection::default() };
        }
        let missing: Vec<_> = ERR_COLUMNS.iter().filter(|wanted| self.column(wanted.name).is_none()).collect();
        let mut sql = statements_to_add(guard, dialect, &missing);
        if self.index.is_none() {
            sql.push(statement_for_index(guard, dialect));
        }
        Inspection {
            table,
            missing_columns: missing.iter().map(|column| column.name.to_owned()).collect(),
            problems: self.problems(guard, dialect),
            missing_index: self.index.is_none(),
            sql,
        }
    }

    fn problems(&self, guard: &Guard, dialect: Dialect) -> Vec<String> {
        let mut problems = Vec::new();
        for (what, name) in guard.fields() {
            match self.column(name) {
                None => problems.push(format!("{what}: the table has no column {name}; it has {}", self.names())),
                Some(column) if column.holds.is_none() => {
                    let kind = &column.kind;
                    problems.push(format!("{what}: {name} is of the type {kind}; integers, text or UUIDs are needed"));
                }
                Some(_) => {}
            }
        }
        problems.extend(self.problem_of_id(guard, dialect));
        for wanted in &ERR_COLUMNS {
            let Some(column) = self.column(wanted.name) else { continue };
            if !column.suits(wanted, dialect) {
                let needed = if wanted.is_time { "a datetime" } else { "an integer" };
                problems.push(format!("{} is of the type {}; {needed} is needed", wanted.name, column.kind));
            }
        }
        for (what, name, value) in guard.values() {
            let Some(Column { holds: Some(holds), .. }) = self.column(name) else { continue };
            if let Err(e) = value.fitted(name, holds) {
                problems.push(format!("{what}: {e}"));
            }
        }
        problems
    }
}

impl Catalogue {
    /// Says why an id does not identify one row. Every statement of a guard is about the rows of one id.
    fn problem_of_id(&self, guard: &Guard, dialect: Dialect) -> Option<String> {
        let id = &*guard.id_field;
        let column = self.column(id)?;
        let is_unique = self.unique_keys.iter().any(|key| key.columns == [id]);
        if is_unique && column.is_nullable {
            return Some(format!("id_field: {id} may be NULL, and such a row cannot be found again; make it NOT NULL"));
        }
        if is_unique {
            return None;
        }
        let composite = self.unique_keys.iter().find(|key| key.columns.iter().any(|column| column == id));
        let why = match composite {
            Some(key) => {
                format!("the key of {} is ({}), so several rows may have one {id}", guard.table, key.columns.join(", "))
            }
            None => format!("{} has no primary key or unique index on it", guard.table),
        };
        let name = quoted(&format!("{}_{id}", crate::task::storable(guard.parts().1, LONGEST_STEM)), dialect);
        let index = format!("CREATE UNIQUE INDEX {name} ON {} ({})", guard.quoted_table(dialect), quoted(id, dialect));
        Some(format!(
            "id_field: {id} does not identify a row: {why}. Name a column as id_field that is NOT NULL and has a primary key \
             or unique index of its own; or, if {id} is unique, say so to the database: {index}"
        ))
    }
}

impl Column {
    fn suits(&self, wanted: &ErrColumn, dialect: Dialect) -> bool {
        if !wanted.is_time {
            return self.holds == Some(Holds::Int);
        }
        match dialect {
            // SQLite keeps text in a column of any of these.
            Dialect::Sqlite => ["date", "time", "char", "text"].iter().any(|part| self.kind.contains(part)),
            Dialect::Postgres => self.kind.starts_with("timestamp"),
            Dialect::MySql => self.kind.starts_with("datetime") || self.kind.starts_with("timestamp"),
        }
    }
}

impl Guard {
    /// The columns that it names.
    fn fields(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let user = self.user_field.as_deref().map(|name| ("user_field", name));
        [("id_field", &*self.id_field), ("status_field", &*self.status_field)].into_iter().chain(user)
    }

    fn values(&self) -> impl Iterator<Item = (&'static str, &str, &super::RowValue)> {
        let status = &*self.status_field;
        let success = self.success_value.as_ref().map(|value| ("success_value", status, value));
        success.into_iter().chain(self.fail_value.as_ref().map(|value| ("fail_value", status, value)))
    }
}

/// The statements that add these columns: nullable and without default, so that no row is rewritten.
fn statements_to_add(guard: &Guard, dialect: Dialect, missing: &[&ErrColumn]) -> Vec<String> {
    let table = guard.quoted_table(dialect);
    let add = |column: &ErrColumn| {
        let name = quoted(column.name, dialect);
        match (dialect, column.is_time) {
            (Dialect::Sqlite, true) => format!("ADD COLUMN {name} DATETIME"),
            (Dialect::Sqlite, false) => format!("ADD COLUMN {name} INTEGER"),
            (Dialect::Postgres, true) => format!("ADD COLUMN IF NOT EXISTS {name} timestamp"),
            (Dialect::Postgres, false) => format!("ADD COLUMN IF NOT EXISTS {name} integer"),
            (Dialect::MySql, true) => format!("ADD COLUMN {name} DATETIME NULL COMMENT '{}'", column.comment),
            (Dialect::MySql, false) => format!("ADD COLUMN {name} INT NULL COMMENT '{}'", column.comment),
        }
    };
    if missing.is_empty() {
        return Vec::new();
    }
    let added = missing.iter().map(|column| add(column));
    match dialect {
        Dialect::Sqlite => added.map(|add| format!("ALTER TABLE {table} {add}")).collect(),
        Dialect::MySql => vec![format!("ALTER TABLE {table} {}", added.collect::<Vec<_>>().join(", "))],
        Dialect::Postgres => {
            let alter = format!("ALTER TABLE {table} {}", added.collect::<Vec<_>>().join(", "));
            let comment =
                |c: &&ErrColumn| format!("COMMENT ON COLUMN {table}.{} IS '{}'", quoted(c.name, dialect), c.comment);
            std::iter::once(alter).chain(missing.iter().map(comment)).collect()
        }
    }
}

/// The most that all databases take for the name of an index, less what is appended.
const LONGEST_STEM: usize = 50;

fn index_name(guard: &Guard, dialect: Dialect) -> String {
    let stem = crate::task::storable(guard.parts().1, LONGEST_STEM);
    quoted(&format!("{stem}_err_scan"), dialect)
}

fn statement_for_index(guard: &Guard, dialect: Dialect) -> String {
    let (schema, name) = guard.parts();
    let index = index_name(guard, dialect);
    let columns = format!("({}, {})", quoted("err_status", dialect), quoted("err_next_retry_time", dialect));
    match (dialect, schema) {
        // SQLite has the schema before the index, not before the table.
        (Dialect::Sqlite, Some(schema)) => {
            let (schema, table) = (quoted(schema, dialect), quoted(name, dialect));
            format!("CREATE INDEX IF NOT EXISTS {schema}.{index} ON {table} {columns}")
        }
        (Dialect::Sqlite, None) => format!("CREATE INDEX IF NOT EXISTS {index} ON {} {columns}", quoted(name, dialect)),
        // Without stopping the application's writes.
        (Dialect::Postgres, _) => {
            format!("CREATE INDEX CONCURRENTLY IF NOT EXISTS {index} ON {} {columns}", guard.quoted_table(dialect))
        }
        (Dialect::MySql, _) => format!("CREATE INDEX {index} ON {} {columns}", guard.quoted_table(dialect)),
    }
}

/// How often we look and add: nodes that start at once may each add some.
const MOST_LOOKS: usize = 20;

/// Makes sure that all columns are there, adding what is missing if the guard may.
pub(super) async fn ensure(db: &Db, guard: &Guard) -> Result<Catalogue> {
    let mut failed: Option<(String, Vec<String>)> = None;
    for _ in 0..MOST_LOOKS {
        let catalogue = Catalogue::read(db, guard).await?;
        let seen = catalogue.inspect(guard, db.dialect());
        if !seen.problems.is_empty() {
            return Err(Error::Schema(format!("guard {}: {}", guard.name(), seen.problems.join("; "))));
        }
        if seen.missing_columns.is_empty() {
            return Ok(catalogue);
        }
        let adding = ERR_COLUMNS.iter().filter(|column| catalogue.column(column.name).is_none()).collect::<Vec<_>>();
        let statements = statements_to_add(guard, db.dialect(), &adding);
        match &failed {
            _ if !guard.add_columns => return Err(must_be_added(guard, &seen, "add_columns is off", &statements)),
            // It failed, and nobody else has added anything since.
            Some((said, before)) if *before == seen.missing_columns => {
                return Err(must_be_added(guard, &seen, said, &statements));
            }
            _ => {}
        }
        failed = add(db, guard, &statements).await.err().map(|e| (e.to_string(), seen.missing_columns));
    }
    Err(Error::Schema(format!("guard {}: its columns come and go", guard.name())))
}

fn must_be_added(guard: &Guard, seen: &Inspection, why: &str, statements: &[String]) -> Error {
    Error::Schema(format!(
        "guard {}: the table {} has no {} ({why}). Run this as someone who may, and start again:\n{};",
        guard.name(),
        guard.table,
        seen.missing_columns.join(", "),
        statements.join(";\n")
    ))
}

/// How long a change of the table waits for the transactions that use it; all that come after it wait for it.
const LOCK_SECONDS: u32 = 5;

async fn add(db: &Db, guard: &Guard, statements: &[String]) -> Result<()> {
    tracing::info!(guard = guard.name(), table = guard.table, "adding columns: {}", statements.join("; "));
    let doing = format!("adding columns to {}", guard.table);
    retrying!(db.pools(), Use::Schema, Scope::Statement, &doing, |c, _| {
        let all = statements.join(";\n");
        match c.dialect() {
            // One implicit transaction.
            Dialect::Postgres => c.script(format!("SET LOCAL lock_timeout = '{LOCK_SECONDS}s';\n{all}")).await,
            Dialect::MySql => {
                c.script(format!("SET SESSION lock_wait_timeout = {LOCK_SECONDS}")).await?;
                let added = c.script(all).await;
                c.script("SET SESSION lock_wait_timeout = DEFAULT".into()).await?;
                added
            }
            Dialect::Sqlite => c.script(all).await,
        }
    })
}

/// How long a node may take to create an index before another tries.
const INDEX_TIME: Duration = Duration::from_secs(3600);

/// Creates the index, unless another node is at it: that may take long on a big table, and nothing waits for it.
pub(super) async fn create_index(db: &Db, guard: &Guard, shared: &Shared) -> Result<()> {
    let name = crate::task::storable(&format!("guard-index:{}", guard.table), 100);
    let Some(lock) = shared.store.lock(&name, &shared.owner, INDEX_TIME, shared.clock.now()).await? else {
        tracing::info!(guard = guard.name(), "another node creates the index");
        return Ok(());
    };
    let created = create_index_alone(db, guard).await;
    shared.store.unlock(&lock).await?;
    created
}

async fn create_index_alone(db: &Db, guard: &Guard) -> Result<()> {
    if Catalogue::read(db, guard).await?.index.is_some() {
        return Ok(()); // another node was quicker
    }
    let (drop, create) = (statement_to_drop_index(guard), statement_for_index(guard, db.dialect()));
    tracing::info!(guard = guard.name(), table = guard.table, "creating an index: {create}");
    let doing = format!("creating the index for the scans of {}", guard.table);
    retrying!(db.pools(), Use::Schema, Scope::Statement, &doing, |c, _| {
        if c.dialect() != Dialect::Postgres {
            return c.script(create.clone()).await;
        }
        // It waits for transactions that have begun before it, however long they take. One that was given up has left an
        // index that is not used: it goes first.
        c.script("SET lock_timeout = 0".into()).await?;
        c.script(drop.clone()).await?;
        let created = c.script(create.clone()).await;
        c.script("RESET lock_timeout".into()).await?;
        created
    })
}

fn statement_to_drop_index(guard: &Guard) -> String {
    let (schema, _) = guard.parts();
    let schema = schema.map(|schema| format!("{}.", quoted(schema, Dialect::Postgres))).unwrap_or_default();
    format!("DROP INDEX CONCURRENTLY IF EXISTS {schema}{}", index_name(guard, Dialect::Postgres))
}
