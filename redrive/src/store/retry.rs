//! One try of an operation, and the next.

use std::time::Duration;

use crate::clock::{Stopwatch, pause};
use crate::error::Fault as Kind;

use super::db::{Connection, Dialect, fault};
use super::faults::Fault;
use super::pool::{Pooled, loses_connection};

/// How far an operation reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One statement that writes, at the most: it commits by itself.
    Statement,
    /// Several, together.
    Transaction,
}

/// What takes longer is told in the log.
const SLOW: Duration = Duration::from_secs(1);

/// How long a connection has to show that it can be used again.
const LONGEST_ROLLBACK: Duration = Duration::from_secs(5);

/// Waits for this long at the most; `None`: it took longer.
pub(crate) async fn within<T>(limit: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    match limit {
        None => Some(work.await),
        Some(limit) => tokio::time::timeout(limit, work).await.ok(),
    }
}

/// A connection for one try of an operation.
pub(crate) struct Lease {
    /// `None` only when it has been given back.
    pub(crate) pooled: Option<Pooled>,
    /// See `host`.
    pub(crate) generation: u64,
    pub(crate) in_transaction: bool,
    /// Whether it may hold locks that no rollback ends: MySQL's, while tables are changed.
    pub(crate) holds_locks: bool,
    /// What goes wrong at its end, on purpose.
    pub(crate) fault: Option<Fault>,
}

impl Lease {
    pub(crate) fn connection(&mut self) -> sqlx::Result<Connection<'_>> {
        self.pooled.as_mut().map(Pooled::connection).ok_or(sqlx::Error::PoolClosed)
    }

    /// It does not answer any more: nobody is to use it again.
    pub(crate) fn give_up(&mut self, waited: Option<Duration>) -> sqlx::Error {
        let waited = waited.unwrap_or_default();
        self.in_transaction = false;
        self.pooled.take().into_iter().for_each(Pooled::discard);
        let why = format!("the database has not answered for {waited:?}");
        sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, why))
    }

    /// Commits what succeeded, rolls back what failed.
    pub(crate) async fn end<T>(&mut self, result: sqlx::Result<T>) -> sqlx::Result<T> {
        if !self.in_transaction {
            return result;
        }
        match result {
            Ok(value) => {
                let mut connection = self.connection()?;
                let is_mysql = connection.dialect() == Dialect::MySql;
                let committed = connection.script("COMMIT".into()).await;
                committed.map_err(|e| if is_mysql { unsure(e) } else { e })?;
                self.in_transaction = false;
                Ok(value)
            }
            Err(e) => {
                self.in_transaction = !is_rolled_back(&mut self.connection()?).await;
                Err(e)
            }
        }
    }
}

impl Drop for Lease {
    /// Whoever waited for it is gone in the middle of it: it is rolled back, and only then may others use the connection, if it still answers. (To a
    /// database in memory there is no other.)
    fn drop(&mut self) {
        let Some(mut pooled) = self.pooled.take() else { return };
        if !self.in_transaction && pooled.connection().dialect() == Dialect::Sqlite {
            return; // there is nothing to be rolled back, and nothing between it and us that could fail
        }
        match tokio::runtime::Handle::try_current() {
            _ if self.holds_locks => pooled.discard(),
            Err(_) => pooled.discard(),
            Ok(runtime) => {
                runtime.spawn(async move {
                    let rolled_back = async { is_rolled_back(&mut pooled.connection()).await };
                    if within(Some(LONGEST_ROLLBACK), rolled_back).await != Some(true) {
                        pooled.discard();
                    }
                });
            }
        }
    }
}

/// A commit that fails is rolled back for certain only after a conflict. Galera has other errors there, when a server loses the
/// others just then; whoever tries again must know that it may have been committed.
fn unsure(e: sqlx::Error) -> sqlx::Error {
    match fault(&e) {
        Kind::Conflict | Kind::Disconnected | Kind::Unavailable => e,
        Kind::Busy | Kind::Unique | Kind::NoTable | Kind::Other => sqlx::Error::Protocol(format!("committing: {e}")),
    }
}

/// Rolls back. SQLite says with an error that there was nothing to roll back; only a lost connection is a failure, and then
/// the transaction goes with it.
async fn is_rolled_back(c: &mut Connection<'_>) -> bool {
    let result = c.script("ROLLBACK".into()).await;
    !result.is_err_and(|e| loses_connection(&e))
}

/// Runs an operation, again and again while it fails for passing reasons:
/// `retrying!(pools, Use::Write, Scope::Statement, doing, |c, tried| { … })`. The body is async, gets a connection and
/// the number of tries before this one whose outcome is unknown (any of which may have been committed), and gives a
/// `sqlx::Result`.
///
/// A macro, because futures of closures that borrow cannot yet be known to be `Send`.
macro_rules! retrying {
    ($pools:expr, $wanted:expr, $scope:expr, $doing:expr, |$c:ident, $tried:pat_param| $body:expr) => {{
        let (pools, wanted) = ($pools, $wanted);
        let mut tries = pools.tries(wanted);
        loop {
            let $tried = tries.unsure;
            let result = match pools.lease(wanted, $scope).await {
                Err(e) => {
                    tries.begun = false;
                    Err(e)
                }
                Ok(mut lease) => {
                    tries.begun = true;
                    tries.generation = lease.generation;
                    let result: Option<sqlx::Result<_>> = match lease.connection() {
                        Err(e) => Some(Err(e)),
                        Ok(mut connection) => {
                            let $c = &mut connection;
                            $crate::store::retry::within(pools.answer_timeout(wanted), async { $body }).await
                        }
                    };
                    match result {
                        Some(result) => pools.give_back(lease, wanted, result).await,
                        None => Err(lease.give_up(pools.answer_timeout(wanted))),
                    }
                }
            };
            if let Some(result) = pools.passing(result, $doing.as_ref(), &mut tries).await {
                break result;
            }
        }
    }};
}
pub(crate) use retrying;

/// How often something was tried, and whether to go on.
pub(crate) struct Tries {
    count: u32,
    /// Tries whose outcome is unknown: the connection was lost, or the server said nothing certain.
    pub(crate) unsure: u32,
    /// True if this try had a connection: without one nothing can have been written.
    pub(crate) begun: bool,
    /// Generation of the connection that was used last, see `host`.
    pub(crate) generation: u64,
    pub(crate) since: Stopwatch,
    pub(crate) limit: Duration,
    pub(crate) patient: bool,
}

impl Tries {
    pub(crate) fn new(limit: Duration, patient: bool) -> Self {
        Self { count: 0, unsure: 0, begun: false, generation: 0, since: Stopwatch::start(), limit, patient }
    }

    /// Counts a try that failed. After a conflict or a lock it was certainly rolled back.
    pub(crate) fn failed(&mut self, fault: Kind) {
        self.count += 1;
        if self.begun && !matches!(fault, Kind::Conflict | Kind::Busy) {
            self.unsure += 1;
        }
    }

    /// What an error says, given the tries before. To a caller that does not wait for locks, a lock, a duplicate or a refusal says that
    /// nothing was written, and it goes on with parts of its batch, or with other ids. After a try whose outcome is unknown,
    /// which may have been committed, these say no more than a lost connection.
    pub(crate) fn in_its_light(&self, e: sqlx::Error) -> sqlx::Error {
        let is_refusal = matches!(fault(&e), Kind::Busy | Kind::Unique | Kind::NoTable | Kind::Other);
        let says_too_much = is_refusal && !self.patient && self.unsure > 0;
        if says_too_much { sqlx::Error::Protocol(format!("an earlier try may have been committed: {e}")) } else { e }
    }

    /// By what was being done: sqlx, which is told to be silent, would log the text of the statement, of many thousand characters.
    pub(crate) fn tell_slow(&self, doing: &str) {
        let took = self.since.elapsed();
        if took >= SLOW {
            tracing::warn!(?took, tries = self.count + 1, "the database was slow: {doing}");
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.since.elapsed() >= self.limit
    }

    /// 10 ms, 20 ms … up to half a second; nodes that failed together are spread by their own timing.
    pub(crate) async fn wait(&self) {
        let before = self.count.saturating_sub(1);
        pause(Duration::from_millis(10 << before.min(6)).min(Duration::from_millis(500))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(patient: bool) -> Tries {
        Tries::new(Duration::ZERO, patient)
    }

    #[test]
    fn only_a_try_whose_outcome_is_unknown_may_have_been_written() {
        let mut tries = tries(true);
        tries.failed(Kind::Unavailable); // no connection was to be had
        tries.begun = true;
        [Kind::Conflict, Kind::Busy].into_iter().for_each(|fault| tries.failed(fault));
        assert_eq!((tries.count, tries.unsure), (3, 0));
        [Kind::Disconnected, Kind::Unavailable].into_iter().for_each(|fault| tries.failed(fault));
        assert_eq!((tries.count, tries.unsure), (5, 2));
    }

    #[test]
    fn a_refusal_says_that_nothing_was_written_unless_an_earlier_try_may_have_been() {
        let refused = || sqlx::Error::ColumnNotFound("x".into());
        let said = |unsure, patient| fault(&Tries { unsure, ..tries(patient) }.in_its_light(refused()));
        assert_eq!(fault(&refused()), Kind::Other);
        assert_eq!((said(0, false), said(1, true)), (Kind::Other, Kind::Other));
        assert_eq!(said(1, false), Kind::Disconnected);
    }
}
