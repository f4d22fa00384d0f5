//! Connections: how many, how they are set up, what happens when one is lost.
//!
//! *Kinds of use.* SQLite has one writer connection and several readers. The other databases have a small pool for
//! inserts, whose statements give up a lock quickly (one contended key must not stall the rest), and one for everything
//! else.
//!
//! *Failure.* `retrying!` repeats an operation that failed for a passing reason (deadlock, lost connection, failover)
//! with a growing pause, until `retry_for` is over. The operation is told which try it is: from the second on, an earlier
//! one may have been committed without our hearing of it. With several hosts in the URL they are tried in their order, and
//! the first that accepts writes is used; nothing is balanced. Connections belong to a generation of the host, which `host`
//! explains. What a Galera cluster needs besides is told in `connect`.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use sqlx::pool::PoolConnection;

use crate::clock::Stopwatch;
use crate::crypt::Keyring;
use crate::error::{Error, Fault, Result};

use super::connect::{insert_share, is_memory};
use super::db::{Connection, Dialect, Tx, database_error, each, fault, is_read_only};
use super::faults::{Fault as Planned, Faults, lost};
use super::layout::Layout;
use super::retry::{Lease, Scope, Tries, within};
use super::url::Url;

/// Connections to a database that is not ours: its own users need them more.
const BUSINESS_CONNECTIONS: u32 = 4;

/// How a store is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Connections to the database at the most; fewer than 2 count as 2. On a server an engine has up to 2 more, for its
    /// beat alone, and on PostgreSQL one that listens for wake-ups. Default: 16.
    pub max_connections: u32,
    /// How long to wait for a connection. Default: 5 s.
    pub connect_timeout: Duration,
    /// How long to go on trying when the database fails for a passing reason. Default: 10 s.
    pub retry_for: Duration,
    /// How long a server may take to answer. Then the connection is taken for lost: a network that drops packets says
    /// nothing either. What was asked for may still happen, as after any lost answer. Default: 60 s.
    pub answer_timeout: Duration,
    /// Most bytes of a task's params. Default: 1 MiB.
    pub max_params: usize,
    /// The keys for params that are encrypted. Default: none.
    pub keyring: Option<Keyring>,
    /// Faults on purpose, for tests. Default: none.
    pub faults: Option<Faults>,
    /// Whether the schema is created or brought up to date. Default: yes.
    pub migrate: bool,
    /// How tasks are spread over tables. Default: as the database has it; a new one has a single table.
    pub layout: Option<Layout>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            max_connections: 16,
            connect_timeout: Duration::from_secs(5),
            retry_for: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(60),
            max_params: crate::task::limits::PARAMS,
            keyring: None,
            faults: None,
            migrate: true,
            layout: None,
        }
    }
}

/// How long somebody else's change of the tables is waited for at the least.
const SCHEMA_CHANGE: Duration = Duration::from_secs(60);

/// How long the columns or the index of a guarded table may take at the most.
const BUSINESS_CHANGE: Duration = Duration::from_secs(3600);

/// What a connection is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
    /// A write that must not wait for a lock.
    Insert,
    /// A change of tables, which may take long.
    Schema,
}

#[derive(Debug)]
pub(crate) struct Pools {
    current: RwLock<Arc<Generation>>,
    url: Secret,
    pub(super) hosts: Vec<String>,
    /// Which of the hosts is used.
    pub(super) host: AtomicUsize,
    kept_first: Mutex<Option<(u64, Pooled)>>,
    kept_rest: Mutex<Option<(u64, Pooled)>>,
    /// Held while looking for a host that accepts writes.
    pub(super) failing_over: tokio::sync::Mutex<()>,
    pub(super) shown: String,
    pub(super) options: StoreOptions,
    /// Set if the database is not redrive's own but that of a guarded table.
    pub(super) business: Option<Business>,
}

/// A database in which redrive has no tables: connections to it are left as they are, but for these.
#[derive(Clone, Debug, Default)]
pub(crate) struct Business {
    /// The zone of its datetimes. `None`: the server's own.
    pub(crate) time_zone: Option<String>,
    /// How long it may take to answer. `None`: as long as redrive's own database.
    pub(crate) answer_timeout: Option<Duration>,
}

impl Business {
    fn options(&self, max_connections: u32) -> StoreOptions {
        let defaults = StoreOptions::default();
        let answer_timeout = self.answer_timeout.unwrap_or(defaults.answer_timeout);
        StoreOptions { max_connections, answer_timeout, ..defaults }
    }
}

/// The connections to one host, for as long as it is the primary. See `host`.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) since: Stopwatch,
    pub(super) pools: Kind,
}

impl Generation {
    /// Closes all connections, after what is under way on them.
    async fn close(&self) {
        each!(Kind, &self.pools, pair => {
            tokio::join!(pair.first.close(), pair.rest.close());
        });
    }

    async fn acquire(&self, wanted: Use) -> sqlx::Result<Pooled> {
        Ok(match &self.pools {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(pair) => Pooled::Sqlite(pair.pool(wanted).acquire().await?),
            #[cfg(feature = "postgres")]
            Kind::Postgres(pair) => Pooled::Postgres(pair.pool(wanted).acquire().await?),
            #[cfg(feature = "mysql")]
            Kind::MySql(pair) => Pooled::MySql(pair.pool(wanted).acquire().await?),
        })
    }

    async fn begin(&self, wanted: Use) -> sqlx::Result<Tx> {
        Ok(match &self.pools {
            // A deferred transaction that reads and then writes fails at once, whatever the busy timeout.
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(pair) => Tx::Sqlite(pair.pool(wanted).begin_with("BEGIN IMMEDIATE").await?),
            #[cfg(feature = "postgres")]
            Kind::Postgres(pair) => Tx::Postgres(pair.pool(wanted).begin().await?),
            #[cfg(feature = "mysql")]
            Kind::MySql(pair) => Tx::MySql(pair.pool(wanted).begin().await?),
        })
    }

    fn first(pools: Kind) -> RwLock<Arc<Self>> {
        RwLock::new(Arc::new(Self { number: 0, since: Stopwatch::start(), pools }))
    }
}

/// A URL with its password: never shown.
struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

#[derive(Debug)]
pub(super) enum Kind {
    #[cfg(feature = "sqlite")]
    Sqlite(Pair<sqlx::Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(Pair<sqlx::Postgres>),
    #[cfg(feature = "mysql")]
    MySql(Pair<sqlx::MySql>),
}

/// Two pools: on SQLite the one writer, and readers; elsewhere inserts, and everything else.
#[derive(Debug)]
pub(crate) struct Pair<DB: sqlx::Database> {
    pub(crate) first: sqlx::Pool<DB>,
    pub(crate) rest: sqlx::Pool<DB>,
}

impl<DB: sqlx::Database> Pair<DB> {
    fn pool(&self, wanted: Use) -> &sqlx::Pool<DB> {
        let first = match wanted {
            Use::Insert => true,
            Use::Read => false,
            Use::Write | Use::Schema => DB::NAME == "SQLite",
        };
        if first { &self.first } else { &self.rest }
    }
}

/// A connection out of a pool.
#[derive(Debug)]
pub(crate) enum Pooled {
    #[cfg(feature = "sqlite")]
    Sqlite(PoolConnection<sqlx::Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(PoolConnection<sqlx::Postgres>),
    #[cfg(feature = "mysql")]
    MySql(PoolConnection<sqlx::MySql>),
}

impl Pooled {
    pub(crate) fn connection(&mut self) -> Connection<'_> {
        each!(Pooled, self, c => Connection::from(&mut **c))
    }

    /// Gives it up instead of returning it: its database is gone or takes no writes any more.
    pub(crate) fn discard(self) {
        each!(Pooled, self, c => drop(c.detach()));
    }
}

impl Pools {
    /// Connects, and makes sure that the database is there and new enough.
    pub(crate) async fn open(whole_url: &str, options: StoreOptions) -> Result<Self> {
        Self::open_as(whole_url, options, None).await
    }

    /// Connects to a database that is not ours.
    pub(crate) async fn open_business(whole_url: &str, business: Business) -> Result<Self> {
        Self::open_as(whole_url, business.options(BUSINESS_CONNECTIONS), Some(business)).await
    }

    async fn open_as(whole_url: &str, options: StoreOptions, business: Option<Business>) -> Result<Self> {
        let url = Url::parse(whole_url)?;
        let Some(first) = url.hosts.first() else {
            return Err(Error::invalid("url", "has no host"));
        };
        let pools = open_kind(first, url.dialect, &options, business.as_ref())?;
        let host = AtomicUsize::new(0);
        let failing_over = tokio::sync::Mutex::default();
        let whole = Secret(whole_url.to_owned());
        let pools = Self {
            current: Generation::first(pools),
            url: whole,
            hosts: url.hosts,
            host,
            kept_first: Mutex::default(),
            kept_rest: Mutex::default(),
            failing_over,
            shown: url.shown,
            options,
            business,
        };
        pools.check().await?;
        Ok(pools)
    }

    /// Connections of a pool that the application has made: one at a time, and given back at once.
    fn of_pool(pools: Kind, shown: &str, business: Business) -> Self {
        let options = business.options(1);
        Self {
            current: Generation::first(pools),
            url: Secret(shown.to_owned()),
            hosts: Vec::new(),
            host: AtomicUsize::new(0),
            kept_first: Mutex::default(),
            kept_rest: Mutex::default(),
            failing_over: tokio::sync::Mutex::default(),
            shown: shown.to_owned(),
            options,
            business: Some(business),
        }
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn of_sqlite(pool: &sqlx::SqlitePool, business: Business) -> Self {
        Self::of_pool(
            Kind::Sqlite(Pair { first: pool.clone(), rest: pool.clone() }),
            "the application's SQLite database",
            business,
        )
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn of_postgres(pool: &sqlx::PgPool, business: Business) -> Self {
        Self::of_pool(
            Kind::Postgres(Pair { first: pool.clone(), rest: pool.clone() }),
            "the application's PostgreSQL database",
            business,
        )
    }

    #[cfg(feature = "mysql")]
    pub(crate) fn of_mysql(pool: &sqlx::MySqlPool, business: Business) -> Self {
        Self::of_pool(
            Kind::MySql(Pair { first: pool.clone(), rest: pool.clone() }),
            "the application's MySQL database",
            business,
        )
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self.generation().pools {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => Dialect::Sqlite,
            #[cfg(feature = "postgres")]
            Kind::Postgres(_) => Dialect::Postgres,
            #[cfg(feature = "mysql")]
            Kind::MySql(_) => Dialect::MySql,
        }
    }

    pub(crate) fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// The URL, password and all.
    pub(crate) fn url(&self) -> &str {
        &self.url.0
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.dialect() == Dialect::Sqlite && is_memory(&self.url.0)
    }

    /// The URL without its password.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    pub(crate) async fn close(&self) {
        drop((lock(&self.kept_first).take(), lock(&self.kept_rest).take()));
        self.generation().close().await;
    }

    /// The connections in use now.
    pub(super) fn generation(&self) -> Arc<Generation> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connects to this host from now on. The connections that there are end: idle ones now, others when what is under way on them has.
    pub(super) fn begin_generation(&self, host: &str) -> Result<()> {
        let pools = open_kind(host, self.dialect(), &self.options, self.business.as_ref())?;
        let before = {
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            let next = Generation { number: current.number + 1, since: Stopwatch::start(), pools };
            std::mem::replace(&mut *current, Arc::new(next))
        };
        drop((lock(&self.kept_first).take(), lock(&self.kept_rest).take()));
        tokio::spawn(async move { before.close().await });
        Ok(())
    }

    /// The pool for everything but inserts, if this is PostgreSQL.
    #[cfg(feature = "postgres")]
    pub(crate) fn postgres(&self) -> Option<sqlx::PgPool> {
        match &self.generation().pools {
            Kind::Postgres(pair) => Some(pair.rest.clone()),
            #[allow(unreachable_patterns, reason = "reachable with another database's cargo feature")]
            _ => None,
        }
    }

    /// A connection, and the number of its generation.
    pub(super) async fn acquire(&self, wanted: Use) -> sqlx::Result<(u64, Pooled)> {
        loop {
            let generation = self.generation();
            match generation.acquire(wanted).await {
                Err(sqlx::Error::PoolClosed) if generation.number != self.generation().number => {}
                acquired => return Ok((generation.number, acquired?)),
            }
        }
    }

    pub(crate) async fn begin(&self, wanted: Use) -> sqlx::Result<Tx> {
        loop {
            let generation = self.generation();
            match generation.begin(wanted).await {
                Err(sqlx::Error::PoolClosed) if generation.number != self.generation().number => {}
                begun => return begun,
            }
        }
    }

    /// A connection, in a transaction if asked: for [`retrying`].
    pub(crate) async fn lease(&self, wanted: Use, scope: Scope) -> sqlx::Result<Lease> {
        let fault = match &self.options.faults {
            Some(faults) => faults.before(wanted).await?,
            None => None,
        };
        let kept = self.kept(wanted).and_then(|kept| lock(kept).take());
        let (generation, pooled) = match kept {
            Some(kept) if kept.0 == self.generation().number => kept,
            _ => self.acquire(wanted).await?,
        };
        let is_change = matches!(wanted, Use::Schema | Use::Insert) && scope == Scope::Statement; // rows go in a transaction
        let holds_locks = is_change && self.dialect() == Dialect::MySql;
        let mut lease = Lease { pooled: Some(pooled), generation, in_transaction: false, holds_locks, fault };
        if scope == Scope::Transaction {
            lease.in_transaction = true;
            let begin = if self.dialect() == Dialect::Sqlite { "BEGIN IMMEDIATE" } else { "START TRANSACTION" };
            let begun =
                within(self.answer_timeout(wanted), async { lease.connection()?.script(begin.into()).await }).await;
            match begun {
                None => return Err(lease.give_up(self.answer_timeout(wanted))),
                Some(Err(e)) => {
                    lease.in_transaction = false;
                    return self.give_back(lease, wanted, Err(e)).await;
                }
                Some(Ok(())) => {}
            }
        }
        Ok(lease)
    }

    /// Ends what was done on a connection, and keeps it for the next.
    pub(crate) async fn give_back<T>(&self, mut lease: Lease, wanted: Use, result: sqlx::Result<T>) -> sqlx::Result<T> {
        let result = if lease.fault == Some(Planned::Disconnect) { Err(lost()) } else { result };
        let Some(result) = within(self.answer_timeout(wanted), lease.end(result)).await else {
            return Err(lease.give_up(self.answer_timeout(wanted)));
        };
        if lease.in_transaction {
            return result; // dropping it discards it
        }
        let Some(pooled) = lease.pooled.take() else { return result };
        let is_current = lease.generation == self.generation().number;
        if !is_current || result.as_ref().is_err_and(loses_connection) {
            pooled.discard();
        } else if let Some(kept) = self.kept(wanted) {
            lock(kept).get_or_insert((lease.generation, pooled));
        }
        let result = if is_current || wanted != Use::Read { result } else { result.and(Err(superseded())) };
        if lease.fault == Some(Planned::FailAfterCommit) { result.and(Err(lost())) } else { result }
    }

    /// Where a connection is kept between two uses. A pool tests each one that is returned to it, which costs a round trip
    /// and a task; in a loop of flushes that is felt. Never the last one of a pool: someone may be waiting for it there.
    fn kept(&self, wanted: Use) -> Option<&Mutex<Option<(u64, Pooled)>>> {
        let first = wanted == Use::Insert;
        let connections = if first { insert_share(&self.options) } else { self.options.max_connections / 2 };
        let may = self.dialect() != Dialect::Sqlite && connections > 1;
        may.then_some(if first { &self.kept_first } else { &self.kept_rest })
    }

    /// How long an answer may take. Changes of tables may take long, and SQLite is not behind a network.
    pub(crate) fn answer_timeout(&self, wanted: Use) -> Option<Duration> {
        match (self.dialect(), wanted) {
            (Dialect::Sqlite, _) => None,
            (_, Use::Schema) => self.business.as_ref().map(|_| BUSINESS_CHANGE),
            _ => Some(self.options.answer_timeout),
        }
    }

    pub(crate) fn tries(&self, wanted: Use) -> Tries {
        // A caller that wants no waiting for locks halves its batch instead. SQLite locks the whole file: halves
        // would wait just the same.
        let patient = wanted != Use::Insert || self.dialect() == Dialect::Sqlite;
        // Nodes that start together wait for the one that changes the tables.
        let waits = wanted == Use::Schema && self.business.is_none();
        let limit = if waits { SCHEMA_CHANGE } else { Duration::ZERO };
        Tries::new(self.options.retry_for.max(limit), patient)
    }

    /// `None`: it failed for a passing reason and may be tried again now.
    pub(crate) async fn passing<T>(
        &self,
        result: sqlx::Result<T>,
        doing: &str,
        tries: &mut Tries,
    ) -> Option<Result<T>> {
        let e = match result {
            Ok(value) => {
                tries.tell_slow(doing);
                return Some(Ok(value));
            }
            Err(e) => e,
        };
        let e = tries.in_its_light(e);
        let fault = fault(&e);
        let again = match fault {
            Fault::Other | Fault::Unique | Fault::NoTable => false,
            Fault::Busy => tries.patient && !tries.is_over(),
            Fault::Conflict | Fault::Disconnected | Fault::Unavailable => !tries.is_over(),
        };
        if !again {
            return Some(Err(database_error(doing, e)));
        }
        tracing::debug!(error = %e, "trying again: {doing}");
        tries.failed(fault);
        if matches!(fault, Fault::Disconnected | Fault::Unavailable) {
            self.fail_over(is_read_only(&e).then_some(tries.generation)).await;
        }
        tries.wait().await;
        None
    }
}

/// The pools of connections to a host; nothing is connected yet.
fn open_kind(host: &str, dialect: Dialect, options: &StoreOptions, business: Option<&Business>) -> Result<Kind> {
    Ok(match (dialect, business) {
        #[cfg(feature = "sqlite")]
        (Dialect::Sqlite, None) => Kind::Sqlite(super::connect::sqlite_pools(host, options)?),
        #[cfg(feature = "postgres")]
        (Dialect::Postgres, None) => Kind::Postgres(super::connect::postgres_pools(host, options)?),
        #[cfg(feature = "mysql")]
        (Dialect::MySql, None) => Kind::MySql(super::connect::mysql_pools(host, options)?),
        #[cfg(feature = "sqlite")]
        (Dialect::Sqlite, Some(_)) => Kind::Sqlite(super::connect::business_sqlite(host, options)?),
        #[cfg(feature = "postgres")]
        (Dialect::Postgres, Some(b)) => Kind::Postgres(super::connect::business_postgres(host, options, b)?),
        #[cfg(feature = "mysql")]
        (Dialect::MySql, Some(b)) => Kind::MySql(super::connect::business_mysql(host, options, b)?),
        #[allow(unreachable_patterns, reason = "reachable only without some database's cargo feature")]
        (other, _) => {
            return Err(Error::invalid(
                "url",
                format!("this build has no support for {other:?}: enable its cargo feature"),
            ));
        }
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was read from a server that is not used any more.
fn superseded() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::ConnectionReset, "another server is the primary by now"))
}

pub(crate) fn loses_connection(e: &sqlx::Error) -> bool {
    matches!(fault(e), Fault::Disconnected | Fault::Unavailable)
}
