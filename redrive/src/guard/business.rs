//! The database that a guarded table is in: any that can be reached, not only redrive's own.
//!
//! Its connections are few and plain: no settings of the planner, no journal mode, no schema of ours. Nothing here holds a
//! transaction or a lock while a handler runs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::store::Store;
use crate::store::db::Dialect;
use crate::store::pool::{Business, Pools};

/// Where a guarded table is: a URL, a pool of the application's own, or redrive's own database.
///
/// ```
/// use redrive::guard::BusinessDatabase;
///
/// let by_url: BusinessDatabase = "mysql://shop:secret@db.example.org/shop".into();
/// let in_shanghai = BusinessDatabase::from("postgres://shop@db.example.org/shop").time_zone("Asia/Shanghai");
/// assert_eq!(format!("{by_url:?}"), "mysql://shop:***@db.example.org/shop");
/// ```
#[derive(Clone)]
pub struct BusinessDatabase {
    place: Place,
    settings: Business,
}

#[derive(Clone)]
enum Place {
    Url(String),
    Store(Store),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlPool),
}

impl BusinessDatabase {
    /// The database that redrive itself is in.
    pub fn of(store: &Store) -> Self {
        Place::Store(store.clone()).into()
    }

    /// The zone in which the `err_*` datetimes are written, as the database spells it: `Asia/Shanghai`, `+08:00`. All nodes
    /// must have the same. Default: the server's own, on SQLite this machine's. A pool of the application's own keeps its.
    #[must_use]
    pub fn time_zone(self, zone: impl Into<String>) -> Self {
        Self { settings: Business { time_zone: Some(zone.into()), ..self.settings }, ..self }
    }

    /// How long the database may take to answer a statement of a guard. Then its connection is taken for lost, and the poll
    /// ends with an error. The statement that adds columns or the index may take longer, and SQLite, which is behind no
    /// network, has no limit. Default: 60 s.
    #[must_use]
    pub fn answer_timeout(self, time: Duration) -> Self {
        Self { settings: Business { answer_timeout: Some(time), ..self.settings }, ..self }
    }

    pub(super) async fn open(&self) -> Result<Db> {
        let business = self.settings.clone();
        let pools = match &self.place {
            Place::Store(store) if store.pools().is_in_memory() => return Ok(Db::Own(store.clone())),
            Place::Store(store) => Pools::open_business(store.pools().url(), business).await?,
            Place::Url(url) => Pools::open_business(url, business).await?,
            #[cfg(feature = "sqlite")]
            Place::Sqlite(pool) => Pools::of_sqlite(pool, business),
            #[cfg(feature = "postgres")]
            Place::Postgres(pool) => Pools::of_postgres(pool, business),
            #[cfg(feature = "mysql")]
            Place::MySql(pool) => Pools::of_mysql(pool, business),
        };
        Ok(Db::Apart(Arc::new(pools)))
    }
}

impl From<Place> for BusinessDatabase {
    fn from(place: Place) -> Self {
        Self { place, settings: Business::default() }
    }
}

impl From<&str> for BusinessDatabase {
    fn from(url: &str) -> Self {
        Place::Url(url.to_owned()).into()
    }
}

impl From<String> for BusinessDatabase {
    fn from(url: String) -> Self {
        Place::Url(url).into()
    }
}

#[cfg(feature = "sqlite")]
impl From<sqlx::SqlitePool> for BusinessDatabase {
    fn from(pool: sqlx::SqlitePool) -> Self {
        Place::Sqlite(pool).into()
    }
}

#[cfg(feature = "postgres")]
impl From<sqlx::PgPool> for BusinessDatabase {
    fn from(pool: sqlx::PgPool) -> Self {
        Place::Postgres(pool).into()
    }
}

#[cfg(feature = "mysql")]
impl From<sqlx::MySqlPool> for BusinessDatabase {
    fn from(pool: sqlx::MySqlPool) -> Self {
        Place::MySql(pool).into()
    }
}

impl fmt::Debug for BusinessDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Url(url) => f.write_str(&crate::store::shown_url(url)),
            Place::Store(store) => f.write_str(store.shown_url()),
            #[cfg(feature = "sqlite")]
            Place::Sqlite(_) => f.write_str("a pool of SQLite's"),
            #[cfg(feature = "postgres")]
            Place::Postgres(_) => f.write_str("a pool of PostgreSQL's"),
            #[cfg(feature = "mysql")]
            Place::MySql(_) => f.write_str("a pool of MySQL's"),
        }
    }
}

/// An open business database.
#[derive(Clone, Debug)]
pub(super) enum Db {
    /// Redrive's own, in memory: there is no other connection to it.
    Own(Store),
    Apart(Arc<Pools>),
}

impl Db {
    pub(super) fn pools(&self) -> &Pools {
        match self {
            Self::Own(store) => store.pools(),
            Self::Apart(pools) => pools,
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.pools().dialect()
    }

    pub(super) fn shown(&self) -> &str {
        self.pools().shown()
    }
}
