//! Guards: failed rows of existing business tables are retried, handed to people, and closed by them.
//!
//! A table with a status column gets nine `err_*` columns. The application says with
//! [`mark_abnormal`](GuardedTable::mark_abnormal) that a row has failed; from then on the guard retries it with the
//! application's [`GuardHandler`], makes it a person's affair when retries do not help, reminds people by mail, and takes
//! their word when they have put it right.
//!
//! *State.* All of it is in the row. `err_status`:
//!
//! | code | meaning | who writes it |
//! | --- | --- | --- |
//! | NULL, 2000 | normal | nobody: it was never abnormal |
//! | 4000 | abnormal, retried automatically | `mark_abnormal` |
//! | 4001 | abnormal, waits for a person | the poll, when retries or time are used up |
//! | 2001 | put right automatically | the poll |
//! | 2002 | put right by a person | [`processing_successful`](GuardedTable::processing_successful) |
//!
//! `err_submit_manual_status` says of people: 2000 they were told, 4000 they could not be told, 4002 they have put it right.
//!
//! *The poll* does four things, in this order, every `scan_interval`:
//!
//! 1. heal: 4000 and 4001 without `err_start_time` get it; 4000 and 4001 whose business status is success become 2001;
//! 2. retry: 4000, due (`err_next_retry_time` is NULL or has come), business status is failure: check, handle, check again;
//! 3. promote: 4000 whose time is used up becomes 4001;
//! 4. notify: 4001, due (`err_next_remind_staff_time` is NULL or has passed), business status is failure: one mail about all.
//!
//! *Invariants.* A row is claimed by moving `err_next_retry_time` ahead, in one statement that checks again all that made it
//! due; that value is the fence of whatever is written later about this try. A claim is made when a handler is free to run,
//! never for rows that wait in memory, and lasts longer than the handler may take: so no two nodes handle a row at once. No
//! transaction or lock of the business database is held while a handler runs. A success that arrives after the row was
//! promoted is still written; a failure then writes nothing. A row that a person closed (2002) is changed by nobody but
//! `mark_abnormal`. One node polls a guard at a time, by a lock in redrive's own database; but the fence, not the lock, is
//! what is relied on. A guard writes `err_*` columns and the status column, nothing else.
//!
//! *Time.* `now` is redrive's clock. Datetimes are in the business database's local time and in whole seconds: the database
//! turns seconds since 1970 into them and back. In the hour that a zone with summer time has twice, times of that hour are
//! taken for the first or the second as the database chooses: a retry, a reminder or the end of a claim may be early or late
//! by that hour. One node at a time keeps claims safe even then. A row has timed out when `now - err_start_time` is the
//! timeout or more.
//!
//! *Failure.* A process that dies leaves its claims: they run out, and the rows are due again, with the same count of retries.
//! A mail that was sent but not noted is sent again. A guard whose database cannot be reached says so in the log, and the
//! others go on. A row that is deleted meanwhile is no error.

mod attempt;
mod business;
mod catalogue;
mod columns;
mod config;
mod entity;
mod explain;
mod handler;
mod list;
mod mail;
mod poll;
#[cfg(feature = "axum")]
mod router;
mod rows;
mod show;
mod sql;
mod table;
mod told;
mod value;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, pause};
use crate::engine::panicked;
use crate::error::{Error, Problems, Result};
use crate::store::Store;

pub use business::BusinessDatabase;
pub use columns::{ERR_COLUMNS, ErrColumn, Inspection};
pub use config::Guard;
pub use entity::ErrColumns;
pub use handler::{BoxError, GuardHandler};
pub use list::{LIST_ROUTE, ListPage, ListRequest};
pub use poll::PollReport;
pub use redrive_macros::ErrColumns;
#[cfg(feature = "axum")]
pub use router::{Caller, Envelope};
pub use show::{NotScanned, RowShown};
pub use table::{BlockedRow, CheckUser, Counts, GuardedTable, Marked, UserBlocked};
pub use value::{GuardId, RowId, RowValue};

use handler::Handler;
use mail::Post;

/// Tables are looked at no more often than this.
pub(crate) const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// `err_status`: what has become of a row.
pub mod err_status {
    /// Normal. (So is NULL.)
    pub const NORMAL: i64 = 2000;
    /// Abnormal, retried automatically.
    pub const ABNORMAL: i64 = 4000;
    /// Abnormal, waits for a person.
    pub const MANUAL: i64 = 4001;
    /// Put right automatically.
    pub const AUTO_SUCCESS: i64 = 2001;
    /// Put right by a person.
    pub const MANUAL_SUCCESS: i64 = 2002;
}

/// `err_submit_manual_status`: what people know of a row.
pub mod manual_status {
    /// They were told.
    pub const SUBMITTED: i64 = 2000;
    /// They could not be told.
    pub const SUBMIT_FAILED: i64 = 4000;
    /// They have put it right.
    pub const SUCCESS: i64 = 4002;
}

/// The guards of an application, and the polling of them. Cheap to clone.
///
/// ```
/// use redrive::guard::{BoxError, BusinessDatabase, Guard, GuardHandler, Guards};
/// use redrive::Store;
///
/// struct Bills;
/// impl GuardHandler for Bills {
///     type Id = i64;
///     async fn check_status(&self, _: &i64) -> Result<bool, BoxError> { Ok(false) }
///     async fn handle(&self, _: &i64) -> Result<bool, BoxError> { Ok(false) }
///     fn manual_success_route(&self) -> String { String::new() }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// let store = Store::open("sqlite::memory:").await?;
/// # let mut tx = store.begin().await?;
/// # if let redrive::store::Connection::Sqlite(c) = tx.connection() {
/// #     sqlx::raw_sql("CREATE TABLE user_bill (id INTEGER PRIMARY KEY, status TEXT)").execute(&mut *c).await?;
/// #     sqlx::raw_sql("INSERT INTO user_bill VALUES (7, 'FAIL')").execute(&mut *c).await?;
/// # }
/// # tx.commit().await?;
/// let guard = Guard::table("user_bill").status_field("status").success_value("SUCCESS").fail_value("FAIL");
/// let guards = Guards::builder(store.clone()).guard(guard, BusinessDatabase::of(&store), Bills).start().await?;
/// let bills = guards.get("user_bill").unwrap();
/// println!("{}", bills.mark_abnormal(7).await?);
/// guards.stop().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Guards(Arc<Inner>);

struct Inner {
    shared: Shared,
    slots: Vec<Arc<Slot>>,
    scan_interval: Duration,
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "only the router has routes"))]
    taken_routes: Vec<String>,
    stop: CancellationToken,
    polling: Mutex<Vec<JoinHandle<()>>>,
}

/// What all guards have in common.
#[derive(Clone)]
struct Shared {
    store: Store,
    clock: Clock,
    /// Whether the clock is ours, to be kept with the database's.
    keeps_clock: bool,
    /// Who we are to the locks.
    owner: String,
    post: Post,
}

/// A registered guard, open or not yet.
struct Slot {
    guard: Guard,
    database: BusinessDatabase,
    handler: Arc<dyn Handler>,
    open: OnceLock<GuardedTable>,
    /// Why it is not open.
    why: Mutex<Option<String>>,
}

/// Makes [`Guards`].
#[must_use = "guards do nothing until they are started"]
pub struct GuardsBuilder {
    store: Store,
    slots: Vec<Slot>,
    scan_interval: Duration,
    taken_routes: Vec<String>,
    clock: Option<Clock>,
    post: Post,
    lenient: bool,
    by_hand: bool,
}

/// A guard that is registered, but cannot work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenGuard {
    /// What people call it.
    pub service_name: String,
    /// Its table.
    pub table: String,
    /// What is wrong.
    pub why: String,
}

impl Guards {
    /// Guards whose locks and audit are in this store.
    pub fn builder(store: Store) -> GuardsBuilder {
        GuardsBuilder {
            store,
            slots: Vec::new(),
            scan_interval: Duration::from_secs(60),
            taken_routes: Vec::new(),
            clock: None,
            post: Post::default(),
            lenient: false,
            by_hand: false,
        }
    }

    /// The guard of this service name, if it is registered and not broken.
    pub fn get(&self, service_name: &str) -> Option<GuardedTable> {
        self.0.slots.iter().find(|slot| slot.guard.name() == service_name)?.open.get().cloned()
    }

    /// All guards that are not broken, in the order in which they were registered.
    pub fn all(&self) -> Vec<GuardedTable> {
        self.0.slots.iter().filter_map(|slot| slot.open.get().cloned()).collect()
    }

    /// The guards that cannot work. They are tried again with each poll.
    pub fn broken(&self) -> Vec<BrokenGuard> {
        let broken = self.0.slots.iter().filter(|slot| slot.open.get().is_none());
        broken.map(|slot| slot.as_broken()).collect()
    }

    /// The names of all registered guards.
    pub fn service_names(&self) -> Vec<String> {
        self.0.slots.iter().map(|slot| slot.guard.name().to_owned()).collect()
    }

    /// Polls each guard once, all at the same time.
    pub async fn poll_once(&self) -> Vec<PollReport> {
        futures_util::future::join_all(self.0.slots.iter().map(|slot| self.0.poll(slot))).await
    }

    /// Stops polling: no row is claimed any more, and the handlers that run are waited for.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        let polling = std::mem::take(&mut *self.0.polling.lock().unwrap_or_else(PoisonError::into_inner));
        futures_util::future::join_all(polling).await;
    }
}

impl Inner {
    async fn poll(&self, slot: &Slot) -> PollReport {
        match poll::unless_stopped(&self.stop, slot.open(&self.shared)).await {
            Ok(Some(table)) => table.poll_until(&self.stop, self.scan_interval).await,
            Ok(None) => PollReport::default(),
            Err(e) => PollReport::broken(slot.guard.name(), &e),
        }
    }

    /// Polls once. A panic, of the application's code or of a driver, ends this poll and no other: claims and the lock that it
    /// held run out. Returns whether there is more to be done at once.
    async fn poll_guarded(&self, slot: &Slot) -> bool {
        match AssertUnwindSafe(self.poll(slot)).catch_unwind().await {
            Ok(report) => report.more,
            Err(panic) => {
                let guard = slot.guard.name();
                tracing::error!(guard, "a poll has ended in a panic; the next one begins anew: {}", panicked(&*panic));
                metrics::counter!("redrive_guard_polls_failed", "guard" => guard.to_owned()).increment(1);
                false
            }
        }
    }

    /// Polls one guard until it is stopped.
    async fn keep_polling(&self, slot: &Slot) {
        while !self.stop.is_cancelled() {
            if !self.poll_guarded(slot).await {
                tokio::select! {
                    () = pause(self.scan_interval) => {}
                    () = self.stop.cancelled() => {}
                }
            }
        }
    }
}

impl Slot {
    /// Its table, opened if it is not yet.
    async fn open(&self, shared: &Shared) -> Result<&GuardedTable> {
        if let Some(table) = self.open.get() {
            return Ok(table);
        }
        let opened = GuardedTable::open(self, shared).await;
        let mut why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        match opened {
            Ok(table) => {
                *why = None;
                Ok(self.open.get_or_init(|| table))
            }
            Err(e) => {
                let said = e.to_string();
                if why.as_ref() != Some(&said) {
                    tracing::error!(guard = self.guard.name(), "a guard cannot work: {said}");
                }
                *why = Some(said);
                Err(e)
            }
        }
    }

    fn as_broken(&self) -> BrokenGuard {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (service_name, table) = (self.guard.name().to_owned(), self.guard.table.clone());
        BrokenGuard { service_name, table, why: why.unwrap_or_else(|| "not tried yet".into()) }
    }
}

impl GuardsBuilder {
    /// Registers a guard: what to watch over, where that is, what to do about it.
    pub fn guard(mut self, guard: Guard, database: impl Into<BusinessDatabase>, handler: impl GuardHandler) -> Self {
        let (database, handler) = (database.into(), Arc::new(handler));
        self.slots.push(Slot { guard, database, handler, open: OnceLock::new(), why: Mutex::default() });
        self
    }

    /// How often each guard is polled, 1 s at the least. Default: 60 s.
    pub fn scan_interval(mut self, time: Duration) -> Self {
        self.scan_interval = time;
        self
    }

    /// How people are told of rows that wait for them. Default: they are not; such rows are marked as "could not be told".
    #[cfg(feature = "notify")]
    pub fn mail(mut self, mail: crate::notify::Mail) -> Self {
        self.post = Post::to(crate::notify::Channel::Mail(mail));
        self
    }

    /// Routes that the application has already: a guard with one of them gets none, and a warning says so.
    pub fn taken_routes(mut self, routes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.taken_routes = routes.into_iter().map(Into::into).collect();
        self
    }

    /// Where the time is read. Default: the store's database time, and monotonic time since.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Whether a guard that is wrong is left out, with an error in the log, instead of stopping all. It is tried again with
    /// each poll. Default: no.
    pub fn lenient(mut self, lenient: bool) -> Self {
        self.lenient = lenient;
        self
    }

    /// Nothing is polled but by [`poll_once`](Guards::poll_once): for tests.
    pub fn by_hand(mut self) -> Self {
        self.by_hand = true;
        self
    }

    /// Checks all guards and begins to poll. An error names all that is wrong with all of them.
    pub async fn start(self) -> Result<Guards> {
        self.check()?;
        let clock = match &self.clock {
            Some(clock) => clock.clone(),
            None => Clock::starting_at(self.store.now().await?),
        };
        let owner = format!("guard-{}", self.store.new_id(None, clock.now()));
        let keeps_clock = self.clock.is_none();
        let shared = Shared { store: self.store, clock, keeps_clock, owner, post: self.post };
        let slots: Vec<_> = self.slots.into_iter().map(Arc::new).collect();
        open_all(&slots, &shared, self.lenient).await?;
        let guards = Guards(Arc::new(Inner {
            shared,
            slots,
            scan_interval: self.scan_interval,
            taken_routes: self.taken_routes,
            stop: CancellationToken::new(),
            polling: Mutex::default(),
        }));
        if !self.by_hand {
            guards.begin_polling();
        }
        Ok(guards)
    }

    /// What can be said without a database.
    fn check(&self) -> Result<()> {
        let mut problems = Problems::default();
        problems.require(self.scan_interval >= SHORTEST_INTERVAL, "scan_interval", || "must be at least 1s".into());
        self.post.check(&mut problems);
        for (i, slot) in self.slots.iter().enumerate() {
            let name = slot.guard.name();
            let again = self.slots.iter().take(i).any(|other| other.guard.name() == name);
            problems.require(!again, &format!("guard {name}"), || "there are two of this service name".into());
            if !self.lenient {
                problems.nest(&format!("guard {name}"), slot.guard.problems());
            }
        }
        problems.into_result()
    }
}

impl Guards {
    fn begin_polling(&self) {
        let tasks = self.0.slots.iter().map(|slot| {
            let (inner, slot) = (self.0.clone(), slot.clone());
            tokio::spawn(async move { inner.keep_polling(&slot).await })
        });
        *self.0.polling.lock().unwrap_or_else(PoisonError::into_inner) = tasks.collect();
    }
}

/// Opens all; if that fails and may not, all that is wrong. An error of one guard alone stays as it is.
async fn open_all(slots: &[Arc<Slot>], shared: &Shared, lenient: bool) -> Result<()> {
    let opened = futures_util::future::join_all(slots.iter().map(|slot| slot.open(shared))).await;
    let mut errors: Vec<Error> = opened.into_iter().filter_map(Result::err).collect();
    match errors.len() {
        0 => Ok(()),
        _ if lenient => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(Error::Schema(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))),
    }
}

impl std::fmt::Debug for Guards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Guards").field(&self.service_names()).finish()
    }
}
