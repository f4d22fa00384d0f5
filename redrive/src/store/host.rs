//! Which host of a database is used: the first of its list that accepts writes, and is new enough.
//!
//! *Failure.* A connection that is lost, or a server that is going down, makes one of those who notice look through the list, in its order. If
//! no host accepts writes, nothing changes, and the next failure looks again. Connections that are there fall away as they fail.

use std::str::FromStr as _;
use std::sync::atomic::Ordering;

use sqlx::ConnectOptions as _;

use crate::error::{Error, Result};

use super::db::{Connection, Dialect, database_error, query};
use super::pool::{Kind, Pooled, Pools, Use};

impl Pools {
    /// Uses the first host, in order, that accepts writes. If none does, nothing changes.
    pub(super) async fn fail_over(&self) {
        if self.hosts.len() < 2 {
            return;
        }
        let Ok(_alone) = self.failing_over.try_lock() else {
            return; // someone is looking already
        };
        for (i, host) in self.hosts.iter().enumerate() {
            if !self.accepts_writes(host).await {
                continue;
            }
            if self.host.swap(i, Ordering::AcqRel) != i {
                tracing::warn!(
                    host = i + 1,
                    of = self.hosts.len(),
                    "database failover: now using another host of the list"
                );
            }
            return self.connect_to(host);
        }
    }

    async fn accepts_writes(&self, host: &str) -> bool {
        let probe = async {
            match &self.pools {
                #[cfg(feature = "sqlite")]
                Kind::Sqlite(_) => Ok(true),
                #[cfg(feature = "postgres")]
                Kind::Postgres(_) => {
                    let mut c = sqlx::postgres::PgConnectOptions::from_str(host)?.connect().await?;
                    let sql = "SELECT CASE WHEN pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN 0 ELSE 1 END";
                    is_one(Connection::from(&mut c), sql).await
                }
                #[cfg(feature = "mysql")]
                Kind::MySql(_) => {
                    let mut c = sqlx::mysql::MySqlConnectOptions::from_str(host)?.connect().await?;
                    let sql = "SELECT CASE WHEN @@global.read_only = 0 THEN 1 ELSE 0 END";
                    let writable = is_one(Connection::from(&mut c), sql).await?;
                    Ok(writable && super::connect::is_ready(&mut Connection::from(&mut c)).await?)
                }
            }
        };
        tokio::time::timeout(self.options.connect_timeout, probe)
            .await
            .is_ok_and(|r: sqlx::Result<bool>| r.unwrap_or(false))
    }

    /// New connections go to this host; old ones fall away as they fail.
    fn connect_to(&self, host: &str) {
        match &self.pools {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => {}
            #[cfg(feature = "postgres")]
            Kind::Postgres(pair) => {
                let options = match self.business {
                    None => super::connect::postgres_options(host),
                    Some(_) => super::connect::business_postgres_options(host).map(|o| (o.clone(), o)),
                };
                if let Ok((first, rest)) = options {
                    pair.first.set_connect_options(first);
                    pair.rest.set_connect_options(rest);
                }
            }
            #[cfg(feature = "mysql")]
            Kind::MySql(pair) => {
                let options = match &self.business {
                    None => super::connect::mysql_options(host),
                    Some(business) => super::connect::business_mysql_options(host, business),
                };
                if let Ok(options) = options {
                    pair.first.set_connect_options(options.clone());
                    pair.rest.set_connect_options(options);
                }
            }
        }
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
        match &self.pools {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(pair) => wrong_with(pair.first.connect_options().get_filename()),
            #[allow(unreachable_patterns, reason = "reachable only with another database's cargo feature")]
            _ => String::new(),
        }
    }

    /// A connection to the first host that can be had, and what the server says it is.
    async fn first_connection(&self) -> sqlx::Result<String> {
        let mut result = self.version().await;
        if result.is_err() && self.hosts.len() > 1 {
            self.fail_over().await;
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
        match &self.pools {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(pair) => drop(pair.first.acquire().await?),
            #[cfg(feature = "postgres")]
            Kind::Postgres(pair) => drop(pair.rest.connect_options().connect().await?),
            #[cfg(feature = "mysql")]
            Kind::MySql(pair) => drop(pair.rest.connect_options().connect().await?),
        }
        self.acquire(Use::Write).await
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

async fn is_one(mut c: Connection<'_>, sql: &'static str) -> sqlx::Result<bool> {
    Ok(c.row(query(sql)).await?.map(|row| row.int()).transpose()? == Some(1))
}

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
