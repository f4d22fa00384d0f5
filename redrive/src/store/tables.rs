//! Tables that come and go with the months.
//!
//! *State.* The setting `layout`: how many tables a month has, whether new tasks go into them, and a version that grows with
//! every change. `redrive_table`: a row for each table that there is (the single one, too), and whether scans look into it.
//! Each store has a snapshot of both ([`Tables`]); a node looks at every beat whether the version has moved.
//!
//! *Invariants.*
//! - A row of `redrive_table` is written when its table is there. A table is dropped only if it is past retention and has no
//!   task in it, looked at under a lock that keeps writers out; what is not empty is kept and reported.
//! - A task goes only into a table that is read. Who writes one into a table that is not (the first of a month, or one from
//!   an old id) makes it, or marks it as read, before.
//! - A table is read while its month is in the live window, and for as long as it has a task in it. Upkeep looks into those
//!   that are not: one that a long transaction wrote into after all is read again.
//! - Between `single` and `monthly` nothing is copied: an id says which it belongs to. The single table goes on being read
//!   until it is empty.
//!
//! *Changing the layout* while nodes run: it is announced first. Nodes that see it read the monthly tables as well and say so
//! in their beat (`layout_seen`). When all have, it is switched on, and new tasks go there. A process that does not know yet
//! goes on writing into the single table, where everyone looks.
//!
//! *Failure.* Everything here can be repeated, and each step can be the last one for now: MySQL commits changes of tables by
//! themselves. A row whose table is missing (MySQL, between the two) is passed over, and removed by the next upkeep.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::{Error, Fault, Result};
use crate::id::TaskId;

use super::db::{Connection, Dialect, query};
use super::layout::{Archive, Layout, Month, Table, Tables};
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::table_sql::{SETTING, announce, drop_archive, drop_if_empty, load, make, make_archive, setting, version};
use super::{Retention, Store, schema};

/// What a round of rotation did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotated {
    /// Tables that were made.
    pub made: Vec<String>,
    /// Tables that were dropped.
    pub dropped: Vec<String>,
    /// Tables that are past retention and still hold tasks.
    pub kept: Vec<String>,
}

/// A month's tables are read from so long before it begins: not all clocks agree.
const EARLY: Duration = Duration::from_secs(3600);

impl Store {
    /// How tasks are spread over tables.
    pub fn layout(&self) -> Layout {
        match self.tables().tables {
            0 => Layout::Single,
            tables => Layout::Monthly { tables },
        }
    }

    /// What we know of the tables.
    pub(super) fn tables(&self) -> Arc<Tables> {
        self.0.known.tables.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What there is to know when a store is opened: the layout that was asked for, and the tables of this month, which may
    /// just have begun.
    pub(super) async fn begin_with_tables(&self) -> Result<()> {
        let found = self.reload_tables().await?;
        if !self.options().migrate {
            return Ok(());
        }
        match self.options().layout {
            Some(Layout::Single) if found.tables > 0 => {
                let problem = "the database has monthly tables, which cannot be undone; leave the layout out";
                return Err(Error::invalid("layout", problem));
            }
            Some(Layout::Monthly { tables }) if !found.are_written || found.tables != tables => {
                self.go_monthly(tables, self.now().await?).await?;
            }
            _ => {}
        }
        let tables = self.tables();
        if tables.tables > 0 && !self.make_ahead(&tables, self.now().await?).await?.is_empty() {
            self.reload_tables().await?;
        }
        Ok(())
    }

    /// What the beat does: looks whether the tables have changed, and says that we have seen it.
    pub(super) async fn follow_tables(&self, c: &mut Connection<'_>) -> sqlx::Result<bool> {
        if version(c).await? != self.tables().version {
            self.know(load(c).await?);
        }
        Ok(self.tables().tables > 0)
    }

    fn know(&self, tables: Tables) -> Arc<Tables> {
        let tables = Arc::new(tables);
        let mut known = self.0.known.tables.write().unwrap_or_else(PoisonError::into_inner);
        if tables.version >= known.version {
            *known = tables.clone();
            self.0.known.monthly.store(tables.are_written, Ordering::Release);
        }
        tables
    }

    /// Looks at the tables anew.
    pub(super) async fn reload_tables(&self) -> Result<Arc<Tables>> {
        let tables =
            retrying!(self.pools(), Use::Read, Scope::Statement, "looking at the tables", |c, _| load(c).await)?;
        Ok(self.know(tables))
    }

    /// What we know of the tables, which includes those of these tasks, if they are there.
    pub(super) async fn tables_for(&self, ids: &[TaskId]) -> Result<Arc<Tables>> {
        let tables = self.tables();
        match ids.iter().all(|id| tables.may_have(*id)) {
            true => Ok(tables),
            false => self.reload_tables().await,
        }
    }

    /// The same for tasks that are to be written: their tables are there, and are read.
    pub(super) async fn make_room(&self, ids: &[TaskId]) -> Result<Arc<Tables>> {
        let tables = self.tables_for(ids).await?;
        let missing = missing(&tables, ids);
        if missing.is_empty() {
            return Ok(tables);
        }
        let now = self.now().await?;
        self.change_tables("making tables for new tasks", &missing, true, now).await?;
        self.reload_tables().await
    }

    /// The same on a caller's own connection, whose transaction may be the one writer that there is.
    pub(super) async fn make_room_in(
        &self,
        c: &mut Connection<'_>,
        ids: &[TaskId],
        now: Timestamp,
    ) -> Result<Arc<Tables>> {
        if c.dialect() != Dialect::Sqlite {
            return self.make_room(ids).await;
        }
        let failed = |e| super::db::database_error("making tables for new tasks", e);
        let missing = missing(&self.tables(), ids);
        if missing.is_empty() {
            return Ok(self.tables());
        }
        make(c, &missing, true, now).await.map_err(failed)?;
        Ok(Arc::new(load(c).await.map_err(failed)?)) // not ours to keep: it may be rolled back
    }

    /// If it failed because a table is not there any more, we have known too little: the next try knows better.
    pub(super) async fn learn_from<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result
            && e.fault() == Some(Fault::NoTable)
        {
            self.reload_tables().await?;
        }
        result
    }

    async fn change_tables(&self, doing: &str, tables: &[Table], read: bool, now: Timestamp) -> Result<Vec<String>> {
        retrying!(self.pools(), Use::Schema, schema::scope(self.dialect()), doing, |c, _| {
            schema::lock(c).await?;
            let made = make(c, tables, read, now).await;
            schema::unlock(c, made).await
        })
    }

    /// Goes from the single table to monthly ones; nothing is copied. While nodes run, each of them first has to say, in its
    /// beat, that it reads them: until then this answers with those that have not, and is to be called again.
    pub async fn go_monthly(&self, tables: u8, now: Timestamp) -> Result<Vec<super::Node>> {
        if !(1..=crate::id::SHARDS).contains(&tables) {
            return Err(Error::invalid("tables", "must be from 1 to 64"));
        }
        let found = self.reload_tables().await?;
        if found.tables != 0 && found.tables != tables {
            let fixed = format!("this database has {} tables a month; that cannot be changed", found.tables);
            return Err(Error::invalid("tables", fixed));
        }
        if found.are_written {
            return Ok(Vec::new());
        }
        let this = Month::of(now);
        let wanted: Vec<Table> = tables_of(this, tables).chain(tables_of(this.plus(1), tables)).collect();
        let doing = "announcing monthly tables";
        retrying!(self.pools(), Use::Schema, schema::scope(self.dialect()), doing, |c, _| {
            schema::lock(c).await?;
            let done = announce(c, tables, this, &wanted, now).await;
            schema::unlock(c, done).await
        })?;
        self.reload_tables().await?;
        let unaware: Vec<_> = self.nodes().await?.into_iter().filter(|n| !n.dead && !n.knows_months).collect();
        if unaware.is_empty() {
            let on = setting(tables, true);
            retrying!(self.pools(), Use::Write, Scope::Transaction, "switching to monthly tables", |c, _| {
                let sql = "UPDATE redrive_setting SET value = ?, version = version + 1, updated_at = ? WHERE name = ?";
                c.execute(query(sql).bind(&*on).bind(now).bind(SETTING)).await
            })?;
            self.reload_tables().await?;
        }
        Ok(unaware)
    }

    /// Goes on with a change of layout that was announced and waits for nodes.
    pub async fn go_on_monthly(&self, now: Timestamp) -> Result<()> {
        let tables = self.tables();
        if tables.tables > 0 && !tables.are_written {
            self.go_monthly(tables.tables, now).await?;
        }
        Ok(())
    }

    /// Makes the tables of this month and the next, drops those that are past retention and empty, and sees which are to be
    /// read. For one node at a time. In the single layout there is nothing to do.
    pub async fn rotate(&self, retention: &Retention, now: Timestamp) -> Result<Rotated> {
        let tables = self.reload_tables().await?;
        if tables.tables == 0 {
            return Ok(Rotated::default());
        }
        self.forget_missing().await?;
        let mut rotated = Rotated { made: self.make_ahead(&tables, now).await?, ..Rotated::default() };
        let first = Month::of(now).plus(-i64::from(retention.keep_months));
        for table in tables.all() {
            let used = self.has_tasks(table).await?;
            let is_past = table.month().is_some_and(|month| month < first);
            if is_past && !used && self.drop_table(table).await? {
                rotated.dropped.push(table.to_string());
                continue;
            }
            if is_past && used {
                rotated.kept.push(table.to_string());
            }
            let read = used || is_in_window(table, retention.live_window, now);
            if read != tables.reads(table) {
                self.change_tables("marking a table", &[table], read, now).await?;
            }
        }
        rotated.dropped.extend(self.drop_archives(&tables, retention, now).await?);
        self.reload_tables().await?;
        Ok(rotated)
    }

    async fn make_ahead(&self, tables: &Tables, now: Timestamp) -> Result<Vec<String>> {
        let (this, next) = (Month::of(now), Month::of(now).plus(1));
        let missing = |month| tables_of(month, tables.tables).filter(|table| !tables.has(*table)).collect::<Vec<_>>();
        let mut made = Vec::new();
        for (month, read) in [(this, true), (next, false)] {
            let missing = missing(month);
            if !missing.is_empty() || !tables.archives.contains(&month) {
                let doing = format!("making the tables of {month}");
                made.extend(self.change_tables(&doing, &missing, read, now).await?);
                made.extend(self.make_archive(month, now).await?);
            }
        }
        Ok(made)
    }

    async fn make_archive(&self, month: Month, now: Timestamp) -> Result<Option<String>> {
        retrying!(self.pools(), Use::Schema, schema::scope(self.dialect()), "making an archive", |c, _| {
            schema::lock(c).await?;
            let made = make_archive(c, month, now).await;
            schema::unlock(c, made).await
        })
    }

    async fn has_tasks(&self, table: Table) -> Result<bool> {
        let sql = format!("SELECT 1 AS n FROM {table} LIMIT 1");
        let doing = format!("looking into {table}");
        retrying!(self.pools(), Use::Read, Scope::Statement, &doing, |c, _| Ok(c
            .row(query(sql.clone()))
            .await?
            .is_some()))
    }

    /// Drops a table if there is nothing in it, and nobody can put anything there meanwhile. One that somebody reads (a backup)
    /// is left for the next time.
    async fn drop_table(&self, table: Table) -> Result<bool> {
        let doing = format!("dropping {table}");
        let dropped = retrying!(self.pools(), Use::Insert, schema::scope(self.dialect()), &doing, |c, _| {
            schema::lock(c).await?;
            let dropped = drop_if_empty(c, table).await;
            schema::unlock(c, dropped).await
        });
        match dropped {
            Err(e) if e.fault() == Some(Fault::Busy) => Ok(false),
            dropped => dropped,
        }
    }

    async fn drop_archives(&self, tables: &Tables, retention: &Retention, now: Timestamp) -> Result<Vec<String>> {
        let Some(before) = retention.keep_archive.before(now) else { return Ok(Vec::new()) };
        let mut dropped = Vec::new();
        for month in tables.archives.iter().filter(|month| month.plus(1).start() <= before) {
            let name = Archive::Of(*month).to_string();
            let doing = format!("dropping {name}");
            let done = retrying!(self.pools(), Use::Insert, schema::scope(self.dialect()), &doing, |c, _| {
                schema::lock(c).await?;
                let done = drop_archive(c, &name).await;
                schema::unlock(c, done).await
            });
            match done {
                Ok(()) => dropped.push(name),
                Err(e) if e.fault() == Some(Fault::Busy) => {} // somebody reads it: the next time
                Err(e) => return Err(e),
            }
        }
        Ok(dropped)
    }

    /// Rows of tables that are not there: on MySQL a drop may have got no further. The catalogue hides what this user may not
    /// see, so the server is asked for each of them.
    async fn forget_missing(&self) -> Result<()> {
        if self.dialect() != Dialect::MySql {
            return Ok(());
        }
        let hidden = "SELECT name FROM redrive_table WHERE name NOT IN \
                      (SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE())";
        let names =
            retrying!(self.pools(), Use::Read, Scope::Statement, "looking for tables that are gone", |c, _| {
                let rows = c.rows(query(hidden)).await?;
                rows.iter().map(|row| row.columns().text().map(str::to_owned)).collect::<sqlx::Result<Vec<String>>>()
            })?;
        for name in names {
            let doing = format!("looking for table {name}");
            let look = format!("SELECT 1 AS n FROM {name} LIMIT 1");
            let there = retrying!(self.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
                c.row(query(look.clone())).await.map(|_| ())
            });
            match there {
                Err(e) if e.fault() == Some(Fault::NoTable) => self.forget_table(&name).await?,
                Err(e) => tracing::error!(table = name, error = %e,
                    "a table of tasks cannot be read, and its tasks wait; grant redrive's user the rights on it"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    async fn forget_table(&self, name: &str) -> Result<()> {
        let doing = format!("forgetting table {name}");
        retrying!(self.pools(), Use::Write, Scope::Statement, &doing, |c, _| {
            c.execute(query("DELETE FROM redrive_table WHERE name = ?").bind(name)).await.map(|_| ())
        })
    }
}

fn tables_of(month: Month, tables: u8) -> impl Iterator<Item = Table> {
    (0..tables).map(move |bucket| Table::Of { month, bucket })
}

/// The tables of these tasks that are not there, or not read.
fn missing(tables: &Tables, ids: &[TaskId]) -> Vec<Table> {
    let monthly = ids.iter().filter(|id| id.is_monthly());
    let missing: BTreeSet<Table> = monthly.map(|id| tables.of(*id)).filter(|table| !tables.reads(*table)).collect();
    missing.into_iter().collect()
}

fn is_in_window(table: Table, window: Duration, now: Timestamp) -> bool {
    match table {
        Table::Single => false,
        Table::Of { month, .. } => month.start() <= now + EARLY && month.plus(1).start() > now - window,
    }
}
