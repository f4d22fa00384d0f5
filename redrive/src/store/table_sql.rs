//! The statements of `tables`: what there is, making it and dropping it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

use super::db::{Connection, Dialect, query};
use super::layout::{Archive, Month, Table, Tables};
use super::schema;

/// The setting `layout`.
#[derive(Debug, Serialize, Deserialize)]
struct Setting {
    tables: u8,
    on: bool,
}

pub(super) const SETTING: &str = "layout";
pub(super) fn setting(tables: u8, on: bool) -> String {
    serde_json::to_string(&Setting { tables, on }).unwrap_or_default() // two plain values cannot fail
}

/// The version of what there is to know of the tables.
pub(super) async fn version(c: &mut Connection<'_>) -> sqlx::Result<i64> {
    let row = c.row(query("SELECT version FROM redrive_setting WHERE name = ?").bind(SETTING)).await?;
    Ok(row.map(|row| row.int()).transpose()?.unwrap_or(0))
}

/// The setting first: what changes after it has a newer version, and is looked at again.
pub(super) async fn load(c: &mut Connection<'_>) -> sqlx::Result<Tables> {
    let row = c.row(query("SELECT version, value FROM redrive_setting WHERE name = ?").bind(SETTING)).await?;
    let Some(row) = row else { return Ok(Tables::default()) };
    let mut columns = row.columns();
    let version = columns.int()?;
    let setting: Setting = serde_json::from_str(columns.text()?).map_err(|e| sqlx::Error::Decode(e.into()))?;
    let there = match c.dialect() {
        Dialect::MySql => "t JOIN information_schema.tables i ON i.table_schema = DATABASE() AND i.table_name = t.name",
        _ => "t", // there, as sure as the row is
    };
    let (mut known, mut archives) = (BTreeMap::new(), BTreeSet::new());
    for row in c.rows(query(format!("SELECT t.kind, t.month, t.bucket, t.is_read FROM redrive_table {there}"))).await? {
        let mut columns = row.columns();
        let (kind, month) = (columns.text()?.to_owned(), columns.int()?);
        let (bucket, read) = (super::row::narrow(columns.int()?)?, columns.int()? != 0);
        match (&*kind, month) {
            ("archive", month) => _ = archives.insert(Month::from_number(month)),
            (_, 0) => _ = known.insert(Table::Single, read),
            (_, month) => _ = known.insert(Table::Of { month: Month::from_number(month), bucket }, read),
        }
    }
    Ok(Tables { version, tables: setting.tables, are_written: setting.on, known, archives })
}

/// Says that there will be monthly tables, which there are from now on. Under the lock.
pub(super) async fn announce(
    c: &mut Connection<'_>,
    tables: u8,
    this: Month,
    wanted: &[Table],
    now: Timestamp,
) -> sqlx::Result<()> {
    let sql = match c.dialect() {
        Dialect::MySql => "INSERT IGNORE INTO redrive_setting (name, version, updated_at, value) VALUES (?, 1, ?, ?)",
        _ => {
            "INSERT INTO redrive_setting (name, version, updated_at, value) VALUES (?, 1, ?, ?) ON CONFLICT (name) DO NOTHING"
        }
    };
    schema::require_monthly(c).await?;
    make(c, &[&[Table::Single], wanted].concat(), true, now).await?;
    for month in [this, this.plus(1)] {
        make_archive(c, month, now).await?;
    }
    c.execute(query(sql).bind(SETTING).bind(now).bind(setting(tables, false))).await.map(|_| ())
}

/// Makes tables that are missing, and marks all as read or not. The names of those that were not there. Under the lock.
pub(super) async fn make(
    c: &mut Connection<'_>,
    tables: &[Table],
    read: bool,
    now: Timestamp,
) -> sqlx::Result<Vec<String>> {
    let mut made = Vec::new();
    for table in tables {
        let name = table.to_string();
        let mark = query("UPDATE redrive_table SET is_read = ? WHERE name = ?").bind(i64::from(read)).bind(&*name);
        if c.execute(mark).await? == 0 {
            let (month, bucket) = match table {
                Table::Single => (0, 0),
                Table::Of { month, bucket } => (month.number(), *bucket),
            };
            if month != 0 {
                schema::make_like(c, "{task}", &name).await?;
            }
            note(c, &name, "task", (month, bucket), read, now).await?;
            made.push(name);
        }
    }
    if !made.is_empty() {
        view_without(c, "").await?;
    }
    moved_on(c).await?;
    Ok(made)
}

pub(super) async fn make_archive(c: &mut Connection<'_>, month: Month, now: Timestamp) -> sqlx::Result<Option<String>> {
    let name = Archive::Of(month).to_string();
    if c.row(query("SELECT month FROM redrive_table WHERE name = ?").bind(&*name)).await?.is_some() {
        return Ok(None);
    }
    schema::make_like(c, "{archive}", &name).await?;
    note(c, &name, "archive", (month.number(), 0), false, now).await?;
    moved_on(c).await?;
    Ok(Some(name))
}

async fn note(
    c: &mut Connection<'_>,
    name: &str,
    kind: &str,
    (month, bucket): (i64, u8),
    read: bool,
    now: Timestamp,
) -> sqlx::Result<()> {
    let sql = "INSERT INTO redrive_table (name, kind, month, bucket, is_read, created_at) VALUES (?, ?, ?, ?, ?, ?)";
    let row = query(sql).bind(name).bind(kind).bind(month).bind(i64::from(bucket)).bind(i64::from(read)).bind(now);
    c.execute(row).await.map(|_| ())
}

/// The tables are others than before: everyone is to look again.
async fn moved_on(c: &mut Connection<'_>) -> sqlx::Result<()> {
    let sql = "UPDATE redrive_setting SET version = version + 1 WHERE name = ?";
    c.execute(query(sql).bind(SETTING)).await.map(|_| ())
}

/// The view of all tasks, but those of one table. `false`: it could not be changed now; the next change brings it up to date.
async fn view_without(c: &mut Connection<'_>, name: &str) -> sqlx::Result<bool> {
    let sql = "SELECT name FROM redrive_table WHERE kind = 'task' AND name <> ? ORDER BY month DESC, bucket";
    let rows = c.rows(query(sql).bind(name)).await?;
    let names: sqlx::Result<Vec<String>> = rows.iter().map(|row| Ok(row.columns().text()?.to_owned())).collect();
    schema::view_tasks(c, &names?).await
}

/// Under the lock. On MySQL a table that is locked for writing is waited for by everyone, and may be dropped.
pub(super) async fn drop_if_empty(c: &mut Connection<'_>, table: Table) -> sqlx::Result<bool> {
    let name = table.to_string();
    let is_empty = query(format!("SELECT 1 AS n FROM {name} LIMIT 1"));
    if c.dialect() == Dialect::MySql {
        if !view_without(c, &name).await? {
            return Ok(false);
        }
        // Rather later than in the way of others, who would queue up behind us.
        c.script("SET SESSION lock_wait_timeout = 1".into()).await?;
        let locked = c.script(format!("LOCK TABLES {name} WRITE")).await;
        c.script("SET SESSION lock_wait_timeout = DEFAULT".into()).await?;
        locked?;
        let dropped = match c.row(is_empty).await {
            Ok(None) => c.script(format!("DROP TABLE {name}")).await.map(|()| true),
            Ok(Some(_)) => Ok(false),
            Err(e) => Err(e),
        };
        c.script("UNLOCK TABLES".into()).await?;
        return match dropped? {
            true => forget(c, &name).await.map(|()| true),
            false => view_without(c, "").await.map(|_| false),
        };
    }
    if c.dialect() == Dialect::Postgres {
        // Rather later than in the way of others, who would queue up behind us.
        c.script(format!("SET LOCAL lock_timeout = '1s'; LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")).await?;
    }
    if c.row(is_empty).await?.is_some() {
        return Ok(false);
    }
    let is_free = view_without(c, &name).await?;
    if is_free {
        drop_and_forget(c, &name).await?;
    }
    Ok(is_free)
}

/// Waits for nobody who reads it.
pub(super) async fn drop_archive(c: &mut Connection<'_>, name: &str) -> sqlx::Result<()> {
    let (before, after) = match c.dialect() {
        Dialect::Sqlite => return drop_and_forget(c, name).await,
        Dialect::Postgres => ("SET LOCAL lock_timeout = '1s'", "SET LOCAL lock_timeout = DEFAULT"),
        Dialect::MySql => ("SET SESSION lock_wait_timeout = 1", "SET SESSION lock_wait_timeout = DEFAULT"),
    };
    c.script(before.into()).await?;
    let done = drop_and_forget(c, name).await;
    if done.is_ok() || c.dialect() == Dialect::MySql {
        c.script(after.into()).await?; // a transaction that failed takes no more statements, and takes its settings with it
    }
    done
}

async fn drop_and_forget(c: &mut Connection<'_>, name: &str) -> sqlx::Result<()> {
    c.script(format!("DROP TABLE IF EXISTS {name}")).await?;
    forget(c, name).await
}

async fn forget(c: &mut Connection<'_>, name: &str) -> sqlx::Result<()> {
    c.execute(query("DELETE FROM redrive_table WHERE name = ?").bind(name)).await?;
    moved_on(c).await
}
