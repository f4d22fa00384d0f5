//! Wake-ups between processes: "there is something due", on PostgreSQL by LISTEN and NOTIFY.
//!
//! Sent after a batch, and apart from it: inside the inserting transaction a NOTIFY makes every commit wait for every other, and
//! by itself it is a commit of its own, which need not wait for the disk. It says who sends it, so that nobody is woken by themselves. A wake-up that is lost costs
//! nothing but time: the scan finds everything. The other databases have none.

use crate::error::Result;
use crate::task::NodeNumber;

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
    /// Tells other nodes that something is due.
    pub(crate) async fn wake_others(&self, me: NodeNumber) -> Result<()> {
        if self.dialect() != Dialect::Postgres {
            return Ok(());
        }
        retrying!(self.pools(), Use::Write, Scope::Statement, "waking other nodes", |c, _| {
            // Nothing depends on its durability: it commits without waiting for the disk, which the flushes need.
            let at_once = "set_config('synchronous_commit', 'off', TRUE)";
            let sql = format!("SELECT {at_once}, CAST(pg_notify({CHANNEL}, ?) AS TEXT)");
            c.rows(query(sql).bind(me.to_string())).await.map(|_| ())
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
            // It keeps its connection for good, so it has one beside those that are shared.
            let own = sqlx::pool::PoolOptions::new().max_connections(1).acquire_timeout(self.options().connect_timeout);
            let own = own.connect_lazy_with((*pool.connect_options()).clone());
            let mut postgres = sqlx::postgres::PgListener::connect_with(&own).await.map_err(failed)?;
            postgres.eager_reconnect(false);
            postgres.listen(&channel).await.map_err(failed)?;
            return Ok(Some(Listener { postgres }));
        }
        Ok(None)
    }
}

impl Listener {
    /// Waits for the next wake-up that is not our own. After an error one has to listen anew: there may be another host by then.
    pub(crate) async fn next(&mut self, me: impl Fn() -> NodeNumber) -> Result<()> {
        #[cfg(feature = "postgres")]
        loop {
            let heard = self.postgres.try_recv().await.and_then(|heard| heard.ok_or_else(lost));
            let heard = heard.map_err(|e| database_error("listening for wake-ups", e))?;
            if heard.payload() != me().to_string() {
                return Ok(());
            }
        }
        #[cfg(not(feature = "postgres"))]
        {
            _ = me;
            std::future::pending().await
        }
    }
}

#[cfg(feature = "postgres")]
fn lost() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::ConnectionReset, "the connection is lost"))
}
