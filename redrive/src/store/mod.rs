//! Where tasks are kept: one [`Store`] over SQLite, PostgreSQL and MySQL/MariaDB.
//!
//! The store does and never decides: what is to be written about a task is computed by the pure functions of
//! [`settle`](crate::settle), and `now` is always an argument. Every write that depends on ownership is a compare-and-set
//! on id, version and owner; its result is given row by row, and "not ours any more" is a value, not an error.
//!
//! | file | what |
//! | --- | --- |
//! | `db`, `connect`, `pool`, `host`, `retry`, `url`, `schema` | the three databases, connections and repetition, migrations |
//! | `row` | tasks as rows, many rows in one statement |
//! | `layout`, `tables` | which table a task is in; tables that come and go with the months |
//! | `insert`, `key`, `turn` | writing tasks down: each key once, each batch once |
//! | `hot`, `claimed` | finding what is due, claiming it |
//! | `settle`, `settle_sql`, `first_try` | ending attempts, rescuing what dead nodes held |
//! | `task`, `dead`, `archive` | looking at tasks and what people do to them |
//! | `history`, `glance` | what happened in each minute; what is due, and what letters died of |
//! | `search`, `count` | finding and counting with a bounded number of rows |
//! | `acting`, `bulk`, `audit` | what people do under their names, to one or to many, and the record of it |
//! | `token`, `console_key` | who may use the API and the console |
//! | `retention`, `overdue` | what is old enough to go; what ran out of time where nobody reads |
//! | `method`, `setting` | what waits of each method, and which are paused; what people have set |
//! | `node`, `lock` | nodes, fences, named locks |
//! | `notice`, `remind` | what people are to be told and reminded of, and how that goes |
//! | `gate` | circuit breakers that nodes share |
//! | `saga` | sagas and their journals |
//! | `wake` | wake-ups between processes |
//! | `explain` | the plans of the hot statements |
//! | `faults` | faults on purpose, for tests |

mod acting;
mod archive;
mod audit;
mod batch;
mod bulk;
mod claimed;
mod connect;
mod console_key;
mod count;
pub(crate) mod db;
mod dead;
mod decode;
mod explain;
mod faults;
mod first_try;
mod gate;
mod glance;
mod history;
mod host;
mod hot;
mod insert;
mod journal;
mod key;
mod layout;
mod lock;
mod method;
mod node;
mod notice;
mod overdue;
pub(crate) mod pool;
mod remind;
mod retention;
pub(crate) mod retry;
mod row;
mod saga;
mod schema;
mod search;
mod setting;
mod settle;
mod settle_sql;
mod table_sql;
mod tables;
mod task;
mod token;
mod turn;
mod url;
mod wake;

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, RwLock, Weak};

use crate::callback::Methods;
use crate::clock::Timestamp;
use crate::crypt::Keyring;
use crate::error::Result;
use crate::id::{IdMaker, TaskId};
use crate::new_task::Maker;

pub use acting::Acting;
pub use archive::{Archived, EndedAs};
pub use audit::{AuditEntry, AuditFilter, AuditOutcome, Audited};
pub use bulk::{Bulk, BulkResult, BulkRun, BulkWhat, DeadAction, MOST_DRY, MOST_IN_BATCH, Step, TaskAction, Which};
pub use count::{Count, Exactness, MOST_EXACT, MethodCount, Overview};
pub use db::{Connection, Dialect, Tx};
pub(crate) use db::{Query, Row, database_error, query};
pub use dead::{DeadTask, Redriven};
pub(crate) use explain::explain;
pub use faults::{Fault, Faults};
pub use gate::GateAction;
pub use glance::{DeadGroup, DeadGroups};
pub use history::Moment;
pub use hot::{Claimed, Due, LaneShards, Slice};
pub(crate) use insert::Callers;
pub use insert::{Enqueued, Prepared};
pub(crate) use journal::{Append, Begins};
pub use layout::Layout;
pub use lock::Lock;
pub use method::{MOST_COUNTED, MethodDepth, Paused};
pub use node::{Node, NodeSeen, Registration};
pub use notice::{ChannelState, Notice};
#[cfg(feature = "notify")]
pub(crate) use notice::{Happened, Sent};
pub use overdue::OverdueWalk;
pub use pool::StoreOptions;
pub use remind::Reminder;
pub use retention::{Keep, KeyWalk, Retention, Swept};
pub use saga::{Journaled, SagaFilter, SagaRecord, SagaSummary};
pub(crate) use schema::{make_alone, script_of};
pub use search::{ArchiveFilter, DeadFilter, Found, MOST_IDS, ROWS as MOST_LOOKED_AT};
pub use setting::SetField;
pub use settle::{Kept, Rescued, Settle, Settled};
pub use tables::Rotated;
pub use task::{Cancelled, TaskFilter};
pub use token::{NewToken, Role, Token};

use pool::{Pools, Use};
use retry::{Scope, retrying};
use turn::Turns;

/// Tasks, dead letters, nodes and locks in a database. Cheap to clone.
///
/// ```
/// use redrive::{NewTask, Store, Timestamp};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let store = Store::open("sqlite::memory:").await?;
/// let now = store.now().await?;
/// let answers = store.insert(vec![NewTask::new("charge", &7)?, NewTask::new("charge", &7)?], now).await?;
/// assert!(!answers[0].existed && answers[1].existed); // the same call, so the same task
/// assert_eq!(store.get(answers[0].id).await?.unwrap().method, "charge");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>, Option<Weak<dyn Methods>>);

#[derive(Debug)]
struct Inner {
    pools: Pools,
    ids: IdMaker,
    turns: Turns,
    known: Known,
    /// The moment of the last claim.
    claimed_at: AtomicI64,
}

/// What stores on the same database know of its tables, together.
#[derive(Clone, Debug, Default)]
struct Known {
    tables: Arc<RwLock<Arc<layout::Tables>>>,
    /// Whether new tasks go into monthly tables.
    monthly: Arc<AtomicBool>,
}

impl Store {
    /// Opens a database and brings its schema up to date: `sqlite://file.db`, `sqlite::memory:`,
    /// `postgres://user:password@host/database`, `mysql://…`, `mariadb://…`. Several hosts (`host1,host2`) are tried in
    /// their order when one fails.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, StoreOptions::default()).await
    }

    /// The same with options.
    pub async fn open_with(url: &str, options: StoreOptions) -> Result<Self> {
        let pools = Pools::open(url, options).await?;
        if pools.options().migrate {
            schema::migrate(&pools).await?;
        } else {
            schema::require(&pools).await?;
        }
        let slot = node::count_up(&pools, turn::SLOT).await?;
        let store = Self::with(pools, slot, Known::default());
        store.begin_with_tables().await?;
        Ok(store)
    }

    /// A store on the same database with connections of its own: for work that must not wait for other work's. A database
    /// in memory has but one connection, so there it is the same store.
    pub async fn apart(&self, connections: u32) -> Result<Self> {
        if self.pools().is_in_memory() {
            return Ok(self.clone());
        }
        let options = StoreOptions { max_connections: connections, migrate: false, ..self.options().clone() };
        let pools = Pools::open(self.pools().url(), options).await?;
        let slot = node::count_up(&pools, turn::SLOT).await?;
        Ok(Self::with(pools, slot, self.0.known.clone()))
    }

    fn with(pools: Pools, slot: i64, known: Known) -> Self {
        let (ids, turns) = (IdMaker::new(slot, known.monthly.clone()), Turns::new(slot));
        Self(Arc::new(Inner { pools, ids, turns, known, claimed_at: AtomicI64::new(0) }), None)
    }

    /// The same store, for one who knows methods: callbacks are calls of theirs.
    pub(crate) fn knowing(self, methods: Weak<dyn Methods>) -> Self {
        Self(self.0, Some(methods))
    }

    /// The time, as the database sees it.
    pub async fn now(&self) -> Result<Timestamp> {
        retrying!(self.pools(), Use::Read, Scope::Statement, "asking for the time", |c, _| node::database_time(c).await)
    }

    /// Which SQL the database speaks.
    pub fn dialect(&self) -> Dialect {
        self.pools().dialect()
    }

    /// The database's URL without its password: for people.
    pub fn shown_url(&self) -> &str {
        self.pools().shown()
    }

    /// Begins a transaction of the caller's own, for [`insert_in`](Self::insert_in) beside business writes. On SQLite it is
    /// BEGIN IMMEDIATE and holds the one writer until it ends.
    pub async fn begin(&self) -> Result<Tx> {
        // After an outage the pool may be full of connections that are gone. Nothing has happened in them yet.
        let mut tries = self.options().max_connections + 1;
        loop {
            tries -= 1;
            match self.pools().begin(Use::Write).await {
                Err(e) if tries > 0 && pool::loses_connection(&e) => {}
                begun => return begun.map_err(|e| db::database_error("beginning a transaction", e)),
            }
        }
    }

    /// Closes all connections, after what is under way.
    pub async fn close(&self) {
        self.pools().close().await;
    }

    /// How long it is tried when the database fails for a passing reason.
    pub(crate) fn retry_for(&self) -> std::time::Duration {
        self.pools().options().retry_for
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.0.pools
    }

    fn options(&self) -> &StoreOptions {
        self.pools().options()
    }

    /// Now, or a little later: a moment that no other claim of this store has.
    fn claim_moment(&self, now: Timestamp) -> Timestamp {
        let next = |last: i64| now.as_millis().max(last + 1);
        let last = self.0.claimed_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(next(last)));
        let (Ok(last) | Err(last)) = last;
        Timestamp::from_millis(next(last))
    }

    fn turns(&self) -> &Turns {
        &self.0.turns
    }

    /// A new id in this shard, or in any.
    pub(crate) fn new_id(&self, shard: Option<u8>, now: Timestamp) -> TaskId {
        self.ids().next(shard.unwrap_or_else(|| self.ids().any_shard()), now)
    }

    pub(crate) fn keyring(&self) -> Option<&Keyring> {
        self.options().keyring.as_ref()
    }

    fn maker(&self) -> Maker<'_> {
        Maker { ids: self.ids(), max_params: self.options().max_params, keyring: self.keyring() }
    }

    fn ids(&self) -> &IdMaker {
        &self.0.ids
    }
}

/// A database URL without its password: for people.
pub(crate) fn shown_url(url: &str) -> String {
    url::Url::parse(url).map_or_else(|_| "a URL that cannot be read".into(), |url| url.shown)
}
