//! Wake-ups between processes: "there is something due", on PostgreSQL by LISTEN and NOTIFY.
//!
//! Sent once per batch and after it: inside the inserting transaction a NOTIFY makes every commit wait for every other. A
//! wake-up that is lost costs nothing but time: the scan finds everything. The other databases have none.

use crate::error::Result;

use super::Store;
use super::db::{Dialect, database_error, query};
use super::pool::Use;
use super::retry::{Scope, retrying};

/// Hears what other processes enqueue.
#[derive(Debug)]
pub(crate) struct Listener {
    #[cfg(feature = "postgres")]
    postgres: sqlx::postgres::PgListener,
}

/// One channel for each schema: several may share a database.
const CHANNEL: &str = "'redrive_' || md5(current_schema())";

impl Store {
    /// Tells other processes that something is due.
    pub(crate) async fn wake_others(&self) -> Result<()> {
        if self.dialect() != Dialect::Postgres {
            return Ok(());
        }
        retrying!(self.pools(), Use::Write, Scope::Statement, "waking other nodes", |c, _| {
            c.rows(query(format!("SELECT CAST(pg_notify({CHANNEL}, '') AS TEXT)"))).await.map(|_| ())
        })
    }

    /// Hears other processes, where the database can.
    pub(crate) async fn listen(&self) -> Result<Option<Listener>> {
        #[cfg(feature = "postgres")]
        if let Some(pool) = self.pools().postgres() {
            let doing = "listening for wake-ups";
            let channel = retrying!(self.pools(), Use::Read, Scope::Statement, doing, |c, _| {
                let row = c.row(query(format!("SELECT {CHANNEL}"))).await?;
                Ok(row.map(|row| row.columns().text().map(str::to_owned)).transpose()?.unwrap_or_default())
            })?;
            let failed = |e| database_error(doing, e);
            let mut postgres = sqlx::postgres::PgListener::connect_with(pool).await.map_err(failed)?;
            postgres.listen(&channel).await.map_err(failed)?;
            return Ok(Some(Listener { postgres }));
        }
        Ok(None)
    }
}

impl Listener {
    /// Waits for the next wake-up.
    pub(crate) async fn next(&mut self) -> Result<()> {
        #[cfg(feature = "postgres")]
        {
            self.postgres.recv().await.map_err(|e| database_error("listening for wake-ups", e))?;
        }
        Ok(())
    }
}
