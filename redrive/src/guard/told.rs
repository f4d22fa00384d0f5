//! Who people are to be told of, and noting of each row that they were, or could not be.

use std::collections::BTreeMap;

use crate::error::Result;
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

impl GuardedTable {
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

    /// Notes of each row that people were told, or could not be.
    pub(super) async fn note_told(&self, now: Seconds, sent: bool) -> Result<u64> {
        let mut total = 0;
        loop {
            let found = self.told(now).await?;
            let is_last = found.len() < BATCH;
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
