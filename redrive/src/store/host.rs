//! Which host of a database is used: the first of its list that accepts writes, and is new enough.
//!
//! *State.* All connections belong to a generation: those to one host, from when it was chosen until another one is. A connection that is
//! leased knows the number of its generation.
//!
//! *Invariants.* Another host begins another generation. Idle connections of the one before are closed then. A connection that is in use is
//! closed when what is under way on it has ended, and if that was only a read its answer does not count: it is read again. So what
//! is read after a planned switchover is never the past of a server that was the primary, as soon as one write has been refused there. Writes need no such
//! rule: the server that is the primary no more refuses them.
//!
//! Behind a proxy or a virtual address the host never changes, and old connections still end at the old primary. So a write that is refused
//! because its server is read-only begins a new generation there as well, at most one in half a second. And before a mere read ends a task or a step of a saga, it is
//! repeated on a connection whose server accepts writes (`verified`).
//!
//! *Failure.* A connection that is lost, or a server that is going down, makes one of those who notice look through the list, in its order. If
//! no host accepts writes, nothing changes, and the next failure looks again.

use std::str::FromStr as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::ConnectOptions as _;

use crate::clock::{Stopwatch, pause};
use crate::error::{Error, Fault, Result};

use super::db::{Connection, Dialect, database_error, fault, query};
use super::pool::{Kind, Pooled, Pools, Use};

impl Pools {
    /// Uses the first host, in order, that accepts writes. If none does, nothing changes. `refused`: the generation in which a write was
    /// refused because its server is read-only.
    pub(super) async fn fail_over(&self, refused: Option<u64>) {
        let generation = self.generation();
        let is_demoted = refused == Some(generation.number) && generation.since.elapsed() >= RENEWED;
        if self.hosts.is_empty() || (self.hosts.len() == 1 && !is_demoted) {
            return;
        }
        let Ok(_alone) = self.failing_over.try_lock() else {
            return; // someone is looking already
        };
        for (i, host) in self.hosts.iter().enumerate() {
            if !self.accepts_writes(host).await {
                continue;
            }
            let is_another = self.host.swap(i, Ordering::AcqRel) != i;
            if is_another {
                tracing::warn!(
                    host = i + 1,
                    of = self.hosts.len(),
                    "database failover: now using another host of the list"
                );
            }
            if (is_another || is_demoted)
                && let Err(e) = self.begin_generation(host)
            {
                tracing::error!(host = i + 1, error = %e, "the database cannot be connected to");
            }
            return;
        }
    }

    async fn accepts_writes(&self, host: &str) -> bool {
        let probe = async {
            match self.dialect() {
                Dialect::Sqlite => Ok(true),
                #[cfg(feature = "postgres")]
                Dialect::Postgres => {
                    let mut c = sqlx::postgres::PgConnectOptions::from_str(host)?.connect().await?;
                    is_writable(&mut Connection::from(&mut c)).await
                }
                #[cfg(feature = "mysql")]
                Dialect::MySql => {
                    let mut c = sqlx::mysql::MySqlConnectOptions::from_str(host)?.connect().await?;
                    let writable = is_writable(&mut Connection::from(&mut c)).await?;
                    Ok(writable && super::connect::is_ready(&mut Connection::from(&mut c)).await?)
                }
            }
        };
        tokio::time::timeout(self.options.connect_timeout, probe)
            .await
            .is_ok_and(|r: sqlx::Result<bool>| r.unwrap_or(false))
    }

    /// The first connection: within the time limit, to a database that is new enough.
    pub(super) async fn check(&self) -> Result<()> {
        let doing = format!("opening {}", self.shown);
        let first = tokio::time::timeout(self.options.connect_timeout, self.first_connection()).await;
        let version = match first {
            Ok(Ok(version)) => version,
            Ok(Err(e)) => return Err(database_error(doing + &self.what_is_wrong_with_the_file(), e)),
            Err(_) => {
                return Err(database_error(
                    format!("{doing} within {:?}", self.options.connect_timeout),
                    sqlx::Error::PoolTimedOut,
                ));
            }
        };
        let too_old = match self.dialect() {
            Dialect::Sqlite => None,
            Dialect::Postgres => (numbers(&version) < [13, 0]).then_some("PostgreSQL 13"),
            Dialect::MySql if version.contains("MariaDB") => (numbers(&version) < [10, 6]).then_some("MariaDB 10.6"),
            Dialect::MySql => (numbers(&version) < [8, 0]).then_some("MySQL 8.0"),
        };
        match too_old {
            Some(wanted) => {
                Err(Error::Schema(format!("{doing}: the server is {version}; redrive needs {wanted} or later")))
            }
            None => Ok(()),
        }
    }

    /// Why SQLite cannot open a file, in more words than it has; empty where that is not to be seen.
    fn what_is_wrong_with_the_file(&self) -> String {
        match &self.generation().pools {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(pair) => wrong_with(pair.first.connect_options().get_filename()),
            #[allow(unreachable_patterns, reason = "reachable only with another database's cargo feature")]
            _ => String::new(),
        }
    }

    /// A connection to the first host that can be had, and what the server says it is.
    async fn first_connection(&self) -> sqlx::Result<String> {
        let started = Stopwatch::start();
        let mut result = self.version().await;
        // SQLite does not wait for the lock under which a new file gets its journal: several nodes may make it at once.
        while result.as_ref().is_err_and(|e| fault(e) == Fault::Busy)
            && started.elapsed() < self.options.connect_timeout / 2
        {
            pause(Duration::from_millis(10)).await;
            result = self.version().await;
        }
        if result.is_err() && self.hosts.len() > 1 {
            self.fail_over(None).await;
            result = self.version().await;
        }
        result
    }

    async fn version(&self) -> sqlx::Result<String> {
        let sql = match self.dialect() {
            Dialect::Sqlite => "SELECT sqlite_version()",
            Dialect::Postgres => "SELECT current_setting('server_version')",
            Dialect::MySql => "SELECT version()",
        };
        let mut pooled = self.connect_once().await?;
        let row = pooled.connection().row(query(sql)).await?;
        Ok(row.map(|r| r.columns().text().map(str::to_owned)).transpose()?.unwrap_or_default())
    }

    /// A pool goes on trying to connect until its time is up; the first time we want to hear at once why it cannot.
    async fn connect_once(&self) -> sqlx::Result<Pooled> {
        match &self.generation().pools {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(pair) => drop(pair.first.acquire().await?),
            #[cfg(feature = "postgres")]
            Kind::Postgres(pair) => drop(pair.rest.connect_options().connect().await?),
            #[cfg(feature = "mysql")]
            Kind::MySql(pair) => drop(pair.rest.connect_options().connect().await?),
        }
        Ok(self.acquire(Use::Write).await?.1)
    }
}

#[cfg(feature = "sqlite")]
fn wrong_with(file: &std::path::Path) -> String {
    match file.parent() {
        _ if file.is_dir() => " (a directory; name a file in it)".into(),
        Some(dir) if !dir.as_os_str().is_empty() && !dir.exists() => {
            format!(" (there is no directory {})", dir.display())
        }
        _ => String::new(),
    }
}

/// Whether the server at the other end accepts writes from everybody.
async fn is_writable(c: &mut Connection<'_>) -> sqlx::Result<bool> {
    let sql = match c.dialect() {
        Dialect::Sqlite => return Ok(true),
        Dialect::Postgres => {
            "SELECT CASE WHEN pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN 0 ELSE 1 END"
        }
        // Some versions have words for these values, others numbers. A server with `super_read_only` has `read_only` as well.
        Dialect::MySql => {
            "SELECT CASE WHEN CAST(@@global.read_only AS CHAR) IN ('0', 'OFF') AND \
             CAST(@@global.innodb_read_only AS CHAR) IN ('0', 'OFF') THEN 1 ELSE 0 END"
        }
    };
    Ok(c.row(query(sql)).await?.map(|row| row.int()).transpose()? == Some(1))
}

/// For what follows on this connection: an error, as of a lost connection, if its server does not accept writes.
pub(super) async fn verified(c: &mut Connection<'_>) -> sqlx::Result<()> {
    let read_only =
        || std::io::Error::new(std::io::ErrorKind::ConnectionReset, "this server is not the primary any more");
    if is_writable(c).await? { Ok(()) } else { Err(sqlx::Error::Io(read_only())) }
}

/// The shortest life of a generation whose host stays the same.
const RENEWED: Duration = Duration::from_millis(500);

/// Major and minor of `15.18 (Debian …)` or `5.5.5-10.11.19-MariaDB-…`.
fn numbers(version: &str) -> [u32; 2] {
    let version = version.strip_prefix("5.5.5-").unwrap_or(version); // an old prefix of MariaDB's
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    [parts.next().unwrap_or(0), parts.next().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_versions() {
        assert_eq!(numbers("15.18 (Debian 15.18-0+deb12u1)"), [15, 18]);
        assert_eq!(numbers("5.5.5-10.11.19-MariaDB-0+deb12u1"), [10, 11]);
        assert_eq!(numbers("8.4.0"), [8, 4]);
    }
}
