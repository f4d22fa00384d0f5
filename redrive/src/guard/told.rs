//! Who people are to be told of, and noting of each row that they were, or could not be.
//!
//! *Failure.* A mail was sent, and the rows could not be changed: the database takes no writes, or the right to change them is
//! missing. The process remembers these rows, tries again to note them at each poll, and sends no mail meanwhile, unless there
//! are other rows or it is time for a reminder.

use std::collections::{BTreeMap, HashSet};
use std::sync::{MutexGuard, PoisonError};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::store::db::Row;
use crate::store::pool::Use;
use crate::store::retry::{Scope, retrying};

use super::mail::Digest;
use super::poll::BATCH;
use super::sql::{Condition, Seconds};
use super::table::{GuardedTable, whole};
use super::value::{Holds, RowId};

/// Rows that a mail names.
const NAMED: usize = 50;

/// The longest pause between two mails about rows that cannot be noted, in reminder intervals.
const MOST_INTERVALS: u32 = 24;

/// Rows of which people were told without a note of it.
#[derive(Clone, Debug)]
pub(super) struct Unnoted {
    ids: HashSet<RowId>,
    /// If there are more rows than are remembered. Then all rows count as told.
    is_partial: bool,
    /// Mails since the first one that could not be noted.
    mails: u32,
    /// The time of the next mail.
    pub(super) until: Timestamp,
}

impl Unnoted {
    fn has(&self, id: &RowId) -> bool {
        self.is_partial || self.ids.contains(id)
    }
}

impl GuardedTable {
    fn unnoted(&self) -> MutexGuard<'_, Option<Unnoted>> {
        self.0.unnoted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries again to note the rows that people were told of before. Returns why that fails, and `None` if there are none left.
    pub(super) async fn note_again(&self, now: Seconds) -> Option<(Unnoted, Error)> {
        let unnoted = self.unnoted().clone()?;
        match self.note_told(now, true, Some(&unnoted)).await {
            Ok(rows) => {
                tracing::info!(guard = self.service_name(), rows, "noted at last that people were told of these rows");
                *self.unnoted() = None;
                None
            }
            Err(e) => Some((unnoted, e)),
        }
    }

    /// Returns whether there are rows to tell of that are not among these.
    pub(super) async fn has_others(&self, now: Seconds, unnoted: &Unnoted) -> Result<bool> {
        Ok(self.told(now).await?.iter().any(|(id, _)| !unnoted.has(id)))
    }

    /// Remembers the rows that people were told of just now, since that could not be noted.
    pub(super) async fn remember_told(&self, now: Timestamp, why: &Error) {
        let found = self.told(super::sql::seconds(now)).await.unwrap_or_default();
        let mails = self.unnoted().as_ref().map_or(1, |before| before.mails.saturating_add(1));
        let until = now + self.0.guard.manual_remind_interval.saturating_mul(mails.min(MOST_INTERVALS));
        tracing::error!(guard = self.service_name(), error = %why, %until,
            "people were told of rows, but that could not be noted; they are told again when there are others, or then");
        let is_partial = found.is_empty() || found.len() >= BATCH;
        let ids = found.into_iter().map(|(id, _)| id).collect();
        *self.unnoted() = Some(Unnoted { ids, is_partial, mails, until });
    }

    /// What people are to be told now.
    pub(super) async fn digest(&self, now: Seconds) -> Result<Option<Digest>> {
        let sql = &self.0.sql;
        let to_tell = sql.to_tell(now)?;
        let user = match &sql.user {
            Some(user) => sql.as_text(&user.quoted, user.holds == Holds::UuidBytes),
            None => "NULL".into(),
        };
        let since = sql.datetime_text("err_start_time");
        let columns = format!(
            "{}, {user}, {since}, COALESCE(err_retry_count, 0), COALESCE(err_manual_notify_count, 0)",
            sql.id_text()
        );
        let doing = format!("looking for rows of {} that people are to be told of", self.table_name());
        let (named, total) = retrying!(self.0.db.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
            let rows = c.rows(sql.scan(&columns, &to_tell, "", NAMED)).await?;
            let named = rows.iter().map(|row| super::mail::read(sql, row)).collect::<sqlx::Result<Vec<_>>>()?;
            let total = match named.len() {
                few if few < NAMED => few as i64,
                _ => c.row(sql.count(&to_tell)).await?.map(|row| row.int()).transpose()?.unwrap_or_default(),
            };
            Ok((named, total))
        })?;
        let route = self.manual_success_route();
        let (service_name, table) = (self.service_name().to_owned(), self.table_name().to_owned());
        let digest = Digest { service_name, table, named, total: total.unsigned_abs(), route };
        Ok((digest.total > 0).then_some(digest))
    }

    /// Notes of each row, or `only` of these, that people were told, or could not be.
    pub(super) async fn note_told(&self, now: Seconds, sent: bool, only: Option<&Unnoted>) -> Result<u64> {
        let mut total = 0;
        loop {
            let mut found = self.told(now).await?;
            let is_last = found.len() < BATCH;
            found.retain(|(id, _)| only.is_none_or(|only| only.has(id)));
            let mut changed = 0;
            for (count, ids) in by_count(found) {
                changed += self.note_some_told(now, sent, count, &ids).await?;
            }
            total += changed;
            if changed == 0 || is_last {
                return Ok(total);
            }
        }
    }

    /// Rows that were told of, with how often they were before.
    async fn told(&self, now: Seconds) -> Result<Vec<(RowId, i64)>> {
        let sql = &self.0.sql;
        let (to_tell, columns) =
            (sql.to_tell(now)?, format!("{}, COALESCE(err_manual_notify_count, 0)", sql.id_text()));
        let doing = format!("looking for rows of {} that people were told of", self.table_name());
        retrying!(self.0.db.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
            let rows = c.rows(sql.scan(&columns, &to_tell, "", BATCH)).await?;
            let read = |row: &Row| {
                let mut c = row.columns();
                Ok((sql.read_id(&mut c)?, c.int()?))
            };
            rows.iter().map(read).collect()
        })
    }

    async fn note_some_told(&self, now: Seconds, sent: bool, count: i64, ids: &[RowId]) -> Result<u64> {
        let sql = &self.0.sql;
        let interval = whole(self.0.guard.manual_remind_interval).saturating_mul(count.saturating_add(1)).max(1);
        let next = Condition::new(format!("err_next_remind_staff_time = {}", sql.at("?")));
        let next = next.with(sql.time(now.saturating_add(interval)));
        let set = if sent {
            let set = Condition::new("err_submit_manual_status = 2000, err_manual_notify_count = ?");
            set.with((count.saturating_add(1)).into())
        } else {
            Condition::new("err_submit_manual_status = 4000")
        };
        let same = Condition::new("COALESCE(err_manual_notify_count, 0) = ?").with(count.into());
        let condition = sql.to_tell(now)?.then(" AND ", same);
        let doing = format!("noting of rows of {} that people were told", self.table_name());
        let set = set.then(", ", next);
        retrying!(self.0.db.pools(), Use::Write, Scope::Statement, &doing, |c, _| {
            c.execute(sql.update_all(&set, ids, &condition)).await
        })
    }
}

fn by_count(found: Vec<(RowId, i64)>) -> BTreeMap<i64, Vec<RowId>> {
    let mut groups = BTreeMap::<i64, Vec<RowId>>::new();
    for (id, count) in found {
        groups.entry(count).or_default().push(id);
    }
    groups
}
