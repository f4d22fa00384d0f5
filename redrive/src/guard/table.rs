//! One guarded table: what the application and its people do with it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use crate::clock::Timestamp;
use crate::error::{Error, Fault, Result};
use crate::store::db::{Dialect, query};
use crate::store::pool::Use;
use crate::store::retry::{Scope, retrying};
use crate::store::{AuditEntry, MOST_EXACT};
use crate::unbroken::unbroken;

use super::business::Db;
use super::catalogue::Catalogue;
use super::columns::{self, Inspection};
use super::config::Guard;
use super::handler::Handler;
use super::sql::{Condition, Seconds, Sql, seconds};
use super::told::Unnoted;
use super::value::{RowId, RowValue};
use super::{Shared, Slot};

/// A table with a guard over it. Cheap to clone.
#[derive(Clone)]
pub struct GuardedTable(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) guard: Guard,
    pub(super) db: Db,
    pub(super) sql: Sql,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) shared: Shared,
    /// Held by the poll that is under way.
    pub(super) polling: tokio::sync::Mutex<()>,
    pub(super) unnoted: Mutex<Option<Unnoted>>,
}

/// What became of [`mark_abnormal`](GuardedTable::mark_abnormal).
#[must_use = "a row that could not be marked is not retried"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marked {
    /// It is abnormal from now on.
    Changed,
    /// It was abnormal already; nothing was changed.
    AlreadyAbnormal,
    /// There is no such row to be seen.
    NoSuchRow,
}

impl fmt::Display for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changed => "marked as abnormal",
            Self::AlreadyAbnormal => "it is abnormal already (4000 or 4001): nothing was changed",
            Self::NoSuchRow => {
                "no row was changed: there is none with this id (and user). Was it written in a transaction that is not \
                 committed yet, or was rolled back? It is marked by another connection, which sees committed rows only: \
                 commit the row first"
            }
        })
    }
}

/// Why a user is not let through by [`check_user_err`](GuardedTable::check_user_err).
#[derive(Debug, thiserror::Error)]
pub enum CheckUser {
    /// Rows of theirs are abnormal.
    #[error("{0}")]
    Blocked(UserBlocked),
    /// It could not be found out.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// The rows that block a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserBlocked {
    /// Of which service.
    pub service_name: String,
    /// Who.
    pub user: String,
    /// The oldest of them.
    pub rows: Vec<BlockedRow>,
    /// How many there are.
    pub total: u64,
}

/// A row that blocks a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedRow {
    /// Its id.
    pub id: RowId,
    /// 4000 or 4001.
    pub err_status: i64,
    /// Since when, `yyyy-MM-dd HH:mm:ss` in the database's local time.
    pub err_start_time: Option<String>,
}

impl fmt::Display for UserBlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows.iter().map(|row| format!("{} ({})", row.id, row.err_status)).collect::<Vec<_>>();
        let more = if self.total > self.rows.len() as u64 { ", …" } else { "" };
        let (service, user) = (&self.service_name, &self.user);
        write!(f, "{service}: {} rows of user {user} are abnormal: {}{more}", self.total, rows.join(", "))
    }
}

/// How many rows have each `err_status`, but for NULL and 2000; see [`GuardedTable::counts`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<i64, u64>);

/// Rows that are named to a user, or of them.
const MOST_BLOCKING: usize = 100;

impl GuardedTable {
    pub(super) async fn open(slot: &Slot, shared: &Shared) -> Result<Self> {
        let guard = slot.guard.clone();
        guard.validate()?;
        let db = slot.database.open().await?;
        let catalogue = columns::ensure(&db, &guard).await?;
        if guard.create_index && catalogue.index.is_none() {
            columns::create_index(&db, &guard, shared).await?;
        }
        let sql = Sql::new(&guard, &catalogue, db.dialect())?;
        let (handler, shared) = (slot.handler.clone(), shared.clone());
        let (polling, unnoted) = (tokio::sync::Mutex::default(), Mutex::default());
        Ok(Self(Arc::new(Inner { guard, db, sql, handler, shared, polling, unnoted })))
    }

    /// The guard.
    pub fn guard(&self) -> &Guard {
        &self.0.guard
    }

    /// What people call it.
    pub fn service_name(&self) -> &str {
        self.0.guard.name()
    }

    /// The table's name.
    pub fn table_name(&self) -> &str {
        &self.0.guard.table
    }

    /// The column with the ids of its rows.
    pub fn id_field(&self) -> &str {
        &self.0.guard.id_field
    }

    /// The handler's route for people's word, if it has one.
    pub fn manual_success_route(&self) -> Option<String> {
        Some(self.0.handler.manual_success_route()).filter(|route| !route.trim().is_empty())
    }

    /// Where the table is, for people.
    pub fn database(&self) -> &str {
        self.0.db.shown()
    }

    /// The id as this table has it: `"7"` is 7 where ids are integers.
    pub fn id(&self, id: impl Into<RowId>) -> Result<RowId> {
        self.0.sql.fit(&id.into())
    }

    /// SQLite, once it has statistics, takes an index of few values for useless; so it is told to use it while it is there.
    pub(super) async fn find_index(&self) -> Result<()> {
        if self.0.sql.dialect == Dialect::Sqlite {
            self.0.sql.use_index(Catalogue::read(&self.0.db, &self.0.guard).await?.index.as_deref());
        }
        Ok(())
    }

    pub(super) fn now(&self) -> Timestamp {
        self.0.shared.clock.now()
    }

    pub(super) fn seconds(&self) -> Seconds {
        seconds(self.now())
    }

    /// A row has failed: from now on it is retried. This is done by a connection of its own and commits at once, so a
    /// rollback of the caller's does not undo it; but then the row itself must be committed already.
    pub async fn mark_abnormal(&self, id: impl Into<RowId>) -> Result<Marked> {
        self.mark(&id.into(), None).await
    }

    /// The same, if the row is of this user.
    pub async fn mark_abnormal_of(&self, id: impl Into<RowId>, user: impl Into<RowValue>) -> Result<Marked> {
        self.mark(&id.into(), Some(user.into())).await
    }

    async fn mark(&self, id: &RowId, user: Option<RowValue>) -> Result<Marked> {
        let Inner { sql, guard, db, .. } = &*self.0;
        let id = sql.fit(id)?;
        let mut is_this = Condition::new(sql.id_is()).with(sql.id_of(&id));
        if let Some(user) = user {
            is_this = is_this.then(" AND ", self.user_is(&user)?);
        }
        let set = Condition::new(format!(
            "err_status = 4000, err_start_time = {}, err_retry_count = 0, err_next_retry_time = NULL, \
             err_min_interval = ?, err_timeout = ?, err_submit_manual_status = NULL, \
             err_next_remind_staff_time = NULL, err_manual_notify_count = 0",
            sql.at("?")
        ))
        .with(sql.time(self.seconds()))
        .with(whole(guard.min_interval).into())
        .with(whole(guard.timeout).into());
        let normal = Condition::new("err_status IS NULL OR err_status NOT IN (4000, 4001)");
        let doing = format!("marking row {id} of {} as abnormal", guard.table);
        let marked = retrying!(db.pools(), Use::Write, Scope::Statement, &doing, |c, tried| {
            let (table, this) = (&sql.table, &is_this);
            // Looked at first: MySQL would wait for the end of the transaction that has written it.
            let is_there = format!("SELECT 1 FROM {table} WHERE {}", this.sql);
            if c.row(query(is_there).bind_all(this.values.clone())).await?.is_none() {
                return Ok(Marked::NoSuchRow);
            }
            let update = format!("UPDATE {table} SET {} WHERE {} AND ({})", set.sql, this.sql, normal.sql);
            let update = query(update).bind_all(set.values.clone()).bind_all(this.values.clone());
            // With a second try: the first may have done it, unheard.
            let changed = c.execute(update).await? > 0 || tried > 0;
            Ok(if changed { Marked::Changed } else { Marked::AlreadyAbnormal })
        });
        marked.map_err(|e| self.explained(e))
    }

    /// The commonest mistake has an explanation.
    fn explained(&self, e: Error) -> Error {
        match e {
            Error::Database { doing, source } if source.fault == Fault::Busy => {
                let why = "another transaction holds the row, perhaps the caller's own: mark it when that has ended";
                Error::Database { doing: format!("{doing} ({why})"), source }
            }
            e => e,
        }
    }

    fn user_is(&self, user: &RowValue) -> Result<Condition> {
        let sql = &self.0.sql;
        match (&sql.user, sql.user_is()) {
            (Some(field), Some(is)) => Ok(Condition::new(is).with(field.value(user)?)),
            _ => Err(Error::invalid("user_field", format!("the guard {} has none: give it one", self.service_name()))),
        }
    }

    /// Whether this user may go on: an error if rows of theirs are in 4000 or 4001. To be called where the business begins.
    pub async fn check_user_err(&self, user: impl Into<RowValue>) -> Result<(), CheckUser> {
        let Inner { sql, db, guard, .. } = &*self.0;
        let user = user.into();
        let blocking = Condition::new("err_status IN (4000, 4001)").then(" AND ", self.user_is(&user)?);
        let doing = format!("looking for abnormal rows of user {user} in {}", guard.table);
        let columns = format!("{}, err_status, {}", sql.id_text(), sql.datetime_text("err_start_time"));
        let order = format!("ORDER BY err_start_time, {}", sql.id.quoted);
        let (rows, total) = retrying!(db.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
            let rows = c.rows(sql.select(&columns, &blocking, &order, MOST_BLOCKING)).await?;
            let rows: Vec<_> = rows.iter().map(|row| read_blocked(sql, row)).collect::<sqlx::Result<_>>()?;
            let total = match rows.len() {
                few if few < MOST_BLOCKING => few as i64,
                _ => c.row(sql.count(&blocking)).await?.map(|row| row.int()).transpose()?.unwrap_or_default(),
            };
            Ok((rows, total))
        })?;
        if rows.is_empty() {
            return Ok(());
        }
        let (service_name, user) = (guard.name().to_owned(), user.to_string());
        Err(CheckUser::Blocked(UserBlocked { service_name, user, rows, total: total.unsigned_abs() }))
    }

    /// A person has put it right: `err_status` 2002, `err_submit_manual_status` 4002, and the status column says success.
    pub async fn processing_successful(&self, id: impl Into<RowId>) -> Result<()> {
        let Inner { sql, db, guard, .. } = &*self.0;
        let id = sql.fit(&id.into())?;
        let set = Condition::new("err_status = 2002, err_submit_manual_status = 4002").then(", ", sql.succeed()?);
        let doing = format!("closing row {id} of {}", guard.table);
        let changed = retrying!(db.pools(), Use::Write, Scope::Statement, &doing, |c, _| {
            c.execute(sql.update(&set, &id, &Condition::new("1 = 1"))).await
        })?;
        if changed == 0 {
            return Err(Error::NotFound { what: "row", id: format!("{id} in {}", guard.table) });
        }
        self.count_change(super::err_status::MANUAL_SUCCESS, 1);
        Ok(())
    }

    /// A person, known by this name, says that they have put it right: the handler's `manual_success` is run, and what became
    /// of it is in the audit. (The audit is redrive's, the row is not: one is written after the other. If the audit cannot be
    /// written, that is an error; saying it again does no harm. Once begun it goes on, also if nobody waits for it any more.) The
    /// id as the table has it.
    pub async fn manual_success(&self, id: impl Into<RowId>, by: &str) -> Result<RowId> {
        let (table, id, by) = (self.clone(), id.into(), by.to_owned());
        unbroken(async move { table.audited_success(&id, &by).await }).await
    }

    async fn audited_success(&self, id: &RowId, by: &str) -> Result<RowId> {
        let result = self.run_manual_success(id).await;
        let (target, refused) = match &result {
            Ok(id) => (format!("{} {id}", self.service_name()), None),
            Err((id, e)) => (format!("{} {id}", self.service_name()), Some(e.to_string())),
        };
        let entry = AuditEntry::new(by, "guard.manual_success", target);
        let entry = match &refused {
            None => entry,
            Some(why) => entry.refused(why),
        };
        let audited = self.0.shared.store.audit(&entry, self.now()).await;
        match (result, audited) {
            (Ok(id), Ok(_)) => Ok(id),
            (Ok(_), Err(e)) | (Err((_, e)), _) => Err(e),
        }
    }

    async fn run_manual_success(&self, id: &RowId) -> Result<RowId, (RowId, Error)> {
        let fitted = self.0.sql.fit(id).map_err(|e| (id.clone(), e))?;
        match self.0.handler.manual_success(self, &fitted).await {
            Ok(()) => Ok(fitted),
            Err(e) => match e.downcast::<Error>() {
                Ok(e) => Err((fitted, *e)),
                Err(e) => {
                    let id = format!("row {fitted} of {}", self.table_name());
                    Err((fitted, Error::Conflict { doing: "close", id, why: e.to_string() }))
                }
            },
        }
    }

    /// How many rows have each `err_status`, but for NULL and 2000; of each at most [`MOST_EXACT`]: a table of a business may be
    /// large, and people look at it often.
    pub async fn counts(&self) -> Result<Counts> {
        let Inner { sql, db, guard, .. } = &*self.0;
        let doing = format!("counting abnormal rows of {}", guard.table);
        let count = |code: i64| {
            let some = format!("SELECT 1 AS n FROM {} WHERE err_status = {code} LIMIT {MOST_EXACT}", sql.table);
            format!("SELECT {code}, COUNT(*) FROM ({some}) x{code}")
        };
        let counts = [4000, 4001, 2001, 2002].map(count).join(" UNION ALL ");
        retrying!(db.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
            let counts = read_counts(&c.rows(query(counts.clone())).await?)?;
            Ok(Counts(counts.into_iter().filter(|(_, n)| *n > 0).collect()))
        })
    }

    pub(super) async fn counts_of(&self, codes: &str) -> Result<Counts> {
        let Inner { sql, db, guard, .. } = &*self.0;
        let doing = format!("counting abnormal rows of {}", guard.table);
        retrying!(db.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
            let count = format!(
                "SELECT err_status, COUNT(*) FROM {} WHERE err_status IN ({codes}) GROUP BY err_status",
                sql.table
            );
            read_counts(&c.rows(query(count)).await?).map(Counts)
        })
    }

    /// Looks at the table: what is missing, and the statements that add it.
    pub async fn inspect(&self) -> Result<Inspection> {
        let catalogue = Catalogue::read(&self.0.db, &self.0.guard).await?;
        Ok(catalogue.inspect(&self.0.guard, self.0.db.dialect()))
    }

    pub(super) fn count_change(&self, to: i64, rows: u64) {
        let guard = self.service_name().to_owned();
        metrics::counter!("redrive_guard_changes", "guard" => guard, "to" => to.to_string()).increment(rows);
    }
}

fn read_counts(rows: &[crate::store::db::Row]) -> sqlx::Result<BTreeMap<i64, u64>> {
    let count = |row: &crate::store::db::Row| {
        let mut c = row.columns();
        Ok((c.int()?, c.int()?.unsigned_abs()))
    };
    rows.iter().map(count).collect()
}

fn read_blocked(sql: &Sql, row: &crate::store::db::Row) -> sqlx::Result<BlockedRow> {
    let mut c = row.columns();
    let id = sql.read_id(&mut c)?;
    Ok(BlockedRow { id, err_status: c.int()?, err_start_time: c.opt_text()?.map(str::to_owned) })
}

/// Whole seconds.
pub(super) fn whole(time: std::time::Duration) -> Seconds {
    Seconds::try_from(time.as_secs()).unwrap_or(Seconds::MAX)
}

impl Guard {
    /// Looks at a table before anything is started or changed: what is missing, what is wrong, the statements that add it.
    pub async fn inspect(&self, database: impl Into<super::BusinessDatabase>) -> Result<Inspection> {
        self.validate()?;
        let db = database.into().open().await?;
        Ok(Catalogue::read(&db, self).await?.inspect(self, db.dialect()))
    }
}

impl fmt::Debug for GuardedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedTable").field("table", &self.table_name()).field("database", &self.database()).finish()
    }
}
