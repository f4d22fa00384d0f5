//! The poll of one guard: heal, retry, promote, notify.
//!
//! *Invariants.* One node polls a guard at a time, by a lock that is renewed while it works; one that loses the lock claims
//! nothing more. The work of a poll is cut into statements about a bounded number of rows. When it has taken a scan
//! interval nothing more is retried, so that a million due rows do not keep people from being told; the next poll then follows at once.
//!
//! A stop waits for handlers and for what is written about them. What is only read, healed or promoted is given up at once:
//! the next poll, on whichever node, does it anew.
//!
//! *Failure.* What fails ends this poll of this guard, with an error in the log; the next one begins anew.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock::{Timestamp, pause};
use crate::error::{Error, Result};
use crate::store::Lock;
use crate::store::pool::Use;
use crate::store::retry::{Scope, retrying};
use crate::task::storable;

use super::attempt::{Ended, Found};
use super::err_status::{ABNORMAL, AUTO_SUCCESS, MANUAL};
use super::sql::{Condition, Seconds, Sql};
use super::table::{GuardedTable, whole};
use super::value::RowId;

/// Rows that are found, or changed, by one statement.
pub(super) const BATCH: usize = 1000;
/// Rows of each kind that are found to be retried, before it is looked again.
const RETRY_BATCH: usize = 100;

/// What a poll of a guard has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PollReport {
    /// Of which guard.
    pub service_name: String,
    /// Rows that had no `err_start_time` and got it.
    pub started: u64,
    /// Rows that had become successful by themselves.
    pub healed: u64,
    /// Rows whose retry succeeded.
    pub succeeded: u64,
    /// Rows whose retry failed, to be retried again.
    pub again: u64,
    /// Rows whose last retry failed: a person has to look at them.
    pub manual: u64,
    /// Rows whose time was used up: a person has to look at them.
    pub promoted: u64,
    /// Rows that could not be claimed, or that someone else had meanwhile.
    pub lost: u64,
    /// Rows that people were told of, or could not be.
    pub told: u64,
    /// Why they could not be told.
    pub not_told: Option<String>,
    /// Whether another node polls it.
    pub held_elsewhere: bool,
    /// What ended it early.
    pub error: Option<String>,
    /// Whether there is more to be done at once.
    pub more: bool,
}

impl PollReport {
    pub(super) fn broken(service_name: &str, e: &Error) -> Self {
        Self { service_name: service_name.to_owned(), error: Some(e.to_string()), ..Self::default() }
    }

    fn note(&mut self, ended: Ended) {
        match ended {
            Ended::Succeeded => self.succeeded += 1,
            Ended::Again => self.again += 1,
            Ended::Manual => self.manual += 1,
            Ended::NotClaimed | Ended::Late | Ended::Overtaken => self.lost += 1,
        }
    }
}

/// A poll under way.
struct Poll<'p> {
    table: &'p GuardedTable,
    report: PollReport,
    lock: Lock,
    renewed_at: Timestamp,
    stop: &'p CancellationToken,
    /// When retrying ends.
    retry_until: Timestamp,
}

impl GuardedTable {
    /// Polls once, unless another node does.
    pub(super) async fn poll_until(&self, stop: &CancellationToken, retry_for: Duration) -> PollReport {
        let _one_at_a_time = self.0.polling.lock().await;
        let mut report = PollReport { service_name: self.service_name().to_owned(), ..PollReport::default() };
        let (lock, now) = match self.lock().await {
            Ok(Some(locked)) => locked,
            Ok(None) => {
                report.held_elsewhere = true;
                return report;
            }
            Err(e) => return self.failed(report, &e),
        };
        let mut poll = Poll { table: self, report, lock, renewed_at: now, stop, retry_until: now + retry_for };
        let result = poll.run().await;
        let Poll { report, lock, .. } = poll;
        if let Err(e) = self.0.shared.store.unlock(&lock).await {
            tracing::warn!(guard = self.service_name(), error = %e, "the lock runs out by itself");
        }
        match result {
            Ok(()) => report,
            Err(e) => self.failed(report, &e),
        }
    }

    fn failed(&self, mut report: PollReport, e: &Error) -> PollReport {
        tracing::error!(guard = self.service_name(), error = %e, "a poll has failed; the next one begins anew");
        metrics::counter!("redrive_guard_polls_failed", "guard" => report.service_name.clone()).increment(1);
        report.error = Some(e.to_string());
        report
    }

    /// It is renewed while we wait for handlers, too; so after a crash others need not wait for as long as handlers may take.
    fn lock_time(&self) -> Duration {
        self.0.guard.handle_timeout.saturating_mul(3).clamp(Duration::from_secs(5), Duration::from_secs(30))
    }

    /// The lock, if nobody else has it. Nodes go by one clock, the database's, wherever theirs have gone meanwhile: by a clock that is behind,
    /// locks and claims would be over for the others before they are for us.
    async fn lock(&self) -> Result<Option<(Lock, Timestamp)>> {
        let shared = &self.0.shared;
        if shared.keeps_clock {
            shared.clock.sync(shared.store.now().await?);
        }
        let now = self.now();
        let name = lock_name(self.service_name());
        Ok(shared.store.lock(&name, &shared.owner, self.lock_time(), now).await?.map(|lock| (lock, now)))
    }

    /// Changes all rows of a scan, a batch at a time; how many that were.
    async fn change_all(&self, doing: &str, condition: &Condition, set: &Condition) -> Result<u64> {
        let sql = &self.0.sql;
        let doing = format!("{doing} rows of {}", self.table_name());
        let mut total = 0;
        loop {
            let ids = self.ids(condition, &doing).await?;
            if ids.is_empty() {
                return Ok(total);
            }
            let changed = retrying!(self.0.db.pools(), Use::Write, Scope::Statement, &doing, |c, _| {
                c.execute(sql.update_all(set, &ids, condition)).await
            })?;
            total += changed;
            if changed == 0 || ids.len() < BATCH {
                return Ok(total);
            }
        }
    }

    async fn ids(&self, condition: &Condition, doing: &str) -> Result<Vec<RowId>> {
        let sql = &self.0.sql;
        retrying!(self.0.db.pools(), Use::Read, Scope::Statement, doing, |c, _| {
            let rows = c.rows(sql.scan(&sql.id_text(), condition, "", BATCH)).await?;
            rows.iter().map(|row| sql.read_id(&mut row.columns())).collect()
        })
    }

    /// Some rows that are due, of either kind, and whether there may be more.
    async fn due(&self, now: Seconds) -> Result<(Vec<Found>, bool)> {
        let (mut found, mut more) = (Vec::new(), false);
        for part in &self.0.sql.due_parts(now)? {
            let some = self.due_of(part).await?;
            more |= some.len() == RETRY_BATCH;
            found.extend(some);
        }
        Ok((found, more))
    }

    async fn due_of(&self, part: &Condition) -> Result<Vec<Found>> {
        let sql = &self.0.sql;
        let columns = Found::columns(sql);
        let doing = format!("looking for rows of {} that are due", self.table_name());
        retrying!(self.0.db.pools(), Use::Read, Scope::Statement, &doing, |c, _| {
            let rows = c.rows(sql.scan(&columns, part, "ORDER BY err_next_retry_time", RETRY_BATCH)).await?;
            rows.iter().map(|row| Found::read(sql, row)).collect()
        })
    }

    /// How many rows are abnormal.
    async fn measure(&self) -> Result<()> {
        let counts = self.counts_of("4000, 4001").await?;
        for code in [ABNORMAL, MANUAL] {
            let rows = counts.0.get(&code).copied().unwrap_or_default();
            let guard = self.service_name().to_owned();
            metrics::gauge!("redrive_guard_rows", "guard" => guard, "status" => code.to_string()).set(rows as f64);
        }
        Ok(())
    }
}

/// How long the name of a lock may be.
const LONGEST_LOCK: usize = 100;

/// The name of a guard's lock. If all of it does not fit, a hash of it tells it from others that begin alike.
fn lock_name(service: &str) -> String {
    let name = format!("guard:{service}");
    let stored = storable(&name, LONGEST_LOCK);
    if stored.len() >= name.len() {
        return stored;
    }
    let hash = format!("#{:016x}", xxhash_rust::xxh3::xxh3_64(name.as_bytes()));
    storable(&name, LONGEST_LOCK - hash.len()) + &hash
}

/// Does some work that may be given up at any moment. Returns `None` if the guards are stopped meanwhile.
pub(super) async fn unless_stopped<T>(
    stop: &CancellationToken,
    work: impl Future<Output = Result<T>>,
) -> Result<Option<T>> {
    tokio::select! {
        done = work => done.map(Some),
        () = stop.cancelled() => Ok(None),
    }
}

impl Poll<'_> {
    async fn run(&mut self) -> Result<()> {
        let stop = self.stop;
        let prepared = async {
            self.table.find_index().await?;
            self.heal().await
        };
        if unless_stopped(stop, prepared).await?.is_none() {
            return Ok(());
        }
        self.retry().await?;
        if self.is_over() || !self.renew().await? {
            return Ok(());
        }
        if unless_stopped(stop, self.promote()).await?.is_none() {
            return Ok(());
        }
        self.notify().await?;
        unless_stopped(stop, self.table.measure()).await.map(|_| ())
    }

    fn is_over(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Source 5, §7.3.
    async fn heal(&mut self) -> Result<()> {
        let (table, sql) = (self.table, &self.table.0.sql);
        let now = Condition::new(format!("err_start_time = {}", sql.at("?"))).with(sql.time(table.seconds()));
        let closed = Condition::new("err_status = 2001, err_next_retry_time = NULL");
        for code in [ABNORMAL, MANUAL] {
            self.report.started += table.change_all("healing", &Sql::heal_start(code), &now).await?;
            self.report.healed += table.change_all("healing", &sql.heal_success(code)?, &closed).await?;
        }
        table.count_change(AUTO_SUCCESS, self.report.healed);
        Ok(())
    }

    /// Source 5, §7.4: until nothing is due that can be claimed, or the time is over.
    async fn retry(&mut self) -> Result<()> {
        loop {
            let due = unless_stopped(self.stop, self.table.due(self.table.seconds())).await?;
            let Some((found, more)) = due else { return Ok(()) };
            let (all, before) = (found.len() as u64, self.report.lost);
            if !self.retry_some(found).await? || !more || self.report.lost - before == all {
                return Ok(());
            }
            if self.table.now() >= self.retry_until {
                self.report.more = true;
                return Ok(());
            }
        }
    }

    /// Retries these, so many at once, or as many of them as the time is enough for. `false`: we are to stop, or another node has the lock.
    async fn retry_some(&mut self, found: Vec<Found>) -> Result<bool> {
        let mut running = JoinSet::new();
        let mut goes_on = Ok(true);
        for row in found {
            if running.len() >= self.table.0.guard.concurrency {
                self.join_one(&mut running).await;
                if self.table.now() >= self.retry_until {
                    self.report.more = true;
                    break;
                }
            }
            goes_on = if self.is_over() { Ok(false) } else { self.renew().await };
            if !matches!(goes_on, Ok(true)) {
                break; // what runs is safe by its claims, and comes to its end
            }
            running.spawn(self.table.clone().attempt(row));
        }
        while !running.is_empty() {
            self.join_one(&mut running).await;
        }
        Ok(goes_on? && !self.report.held_elsewhere)
    }

    /// Waits for one that ends.
    async fn join_one(&mut self, running: &mut JoinSet<Result<Ended>>) {
        let ended = self.holding_the_lock(running.join_next()).await;
        match ended {
            Some(Ok(Ok(ended))) => self.report.note(ended),
            Some(Ok(Err(e))) => {
                tracing::warn!(guard = self.table.service_name(), error = %e, "a row waits until its claim runs out");
                self.report.lost += 1;
            }
            Some(Err(_)) => self.report.lost += 1, // the runtime is shutting down
            None => {}
        }
    }

    /// Waits for something; renews the lock meanwhile. Should that fail, what runs is still safe by its claims.
    async fn holding_the_lock<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = pause(self.table.lock_time() / 4) => {}
            }
            if let Err(e) = self.renew().await {
                tracing::warn!(guard = self.table.service_name(), error = %e, "the lock could not be renewed");
            }
        }
    }

    /// Keeps the lock; `false` if another node has it.
    async fn renew(&mut self) -> Result<bool> {
        if self.table.now().since(self.renewed_at) < self.table.lock_time() / 4 {
            return Ok(true);
        }
        match self.table.lock().await? {
            Some((lock, now)) if lock.term == self.lock.term => {
                (self.lock, self.renewed_at) = (lock, now);
                Ok(true)
            }
            _ => {
                tracing::warn!(guard = self.table.service_name(), "another node polls this guard now");
                self.report.held_elsewhere = true;
                Ok(false)
            }
        }
    }

    /// Source 5, §7.7.
    async fn promote(&mut self) -> Result<()> {
        let (table, sql) = (self.table, &self.table.0.sql);
        let timed_out = sql.timed_out(table.seconds(), whole(table.0.guard.timeout));
        let set = Condition::new("err_status = 4001, err_next_retry_time = NULL, err_next_remind_staff_time = NULL");
        self.report.promoted = table.change_all("promoting", &timed_out, &set).await?;
        table.count_change(MANUAL, self.report.promoted);
        Ok(())
    }

    /// Source 5, §7.8: one mail about all of them, and each notes what became of it.
    async fn notify(&mut self) -> Result<()> {
        let (table, now) = (self.table, self.table.now());
        let seconds = super::sql::seconds(now);
        let unnoted = table.note_again(seconds).await;
        let Some(digest) = table.digest(seconds).await? else { return Ok(()) };
        if let Some((unnoted, e)) = unnoted
            && now < unnoted.until
            && !table.has_others(seconds, &unnoted).await?
        {
            return Err(e);
        }
        let sent = self.holding_the_lock(table.0.shared.post.send(&digest, now)).await;
        if let Err(why) = &sent {
            tracing::warn!(guard = table.service_name(), rows = digest.total, "people could not be told: {why}");
        }
        let noted = table.note_told(seconds, sent.is_ok(), None).await;
        if let (Ok(()), Err(e)) = (&sent, &noted) {
            table.remember_told(now, e).await;
        }
        let outcome = if sent.is_ok() { "sent" } else { "failed" };
        let guard = table.service_name().to_owned();
        metrics::counter!("redrive_guard_mails", "guard" => guard, "outcome" => outcome).increment(1);
        self.report.not_told = sent.err();
        self.report.told = noted?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_that_are_named_alike_at_first_have_locks_of_their_own() {
        assert_eq!(lock_name("异常处理示例"), "guard:异常处理示例");
        assert_eq!(lock_name(&"a".repeat(94)), format!("guard:{}", "a".repeat(94)));
        let long = ["a", "b"].map(|end| lock_name(&format!("{}{end}", "示".repeat(60))));
        assert!(long.iter().all(|name| name.starts_with("guard:示") && name.len() <= LONGEST_LOCK), "{long:?}");
        assert_ne!(long[0], long[1]);
    }
}
