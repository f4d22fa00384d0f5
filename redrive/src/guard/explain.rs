//! How the database would run the scans of a poll: for a person who wonders why it is slow, and for the test that holds them
//! to the index.

use crate::error::Result;
use crate::store::explain;
use crate::store::pool::Use;
use crate::store::retry::{Scope, retrying};

use super::attempt::Found;
use super::sql::Sql;
use super::table::{GuardedTable, whole};

impl GuardedTable {
    /// The plans of the scans, each with its name.
    pub async fn explain(&self) -> Result<Vec<(&'static str, String)>> {
        self.find_index().await?;
        let (sql, now) = (&self.0.sql, self.seconds());
        let id = sql.id_text();
        let timed_out = sql.timed_out(now, whole(self.0.guard.timeout));
        let [never, come] = sql.due_parts(now)?;
        let statements = [
            ("heal start", sql.scan(&id, &Sql::heal_start(4000), "", 100)),
            ("heal success", sql.scan(&id, &sql.heal_success(4001)?, "", 100)),
            ("retry for the first time", sql.scan(&Found::columns(sql), &never, "ORDER BY err_next_retry_time", 100)),
            ("retry", sql.scan(&Found::columns(sql), &come, "ORDER BY err_next_retry_time", 100)),
            ("promote", sql.scan(&id, &timed_out, "", 100)),
            ("notify", sql.scan(&id, &sql.to_tell(now)?, "", 100)),
        ];
        let mut plans = Vec::new();
        for (name, statement) in statements {
            let plan = retrying!(self.0.db.pools(), Use::Read, Scope::Statement, name, |c, _| {
                explain(c, statement.clone()).await
            })?;
            plans.push((name, plan));
        }
        Ok(plans)
    }
}
