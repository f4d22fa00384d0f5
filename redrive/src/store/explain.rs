//! How the database would run the statements that every task pays for: for a person who wonders why it is slow, and for
//! the test that holds them to their indexes.

use crate::clock::Timestamp;
use crate::error::Result;
use crate::id::SHARDS;
use crate::new_task::NewTask;
use crate::settle::{Outcome, settle};
use crate::task::{Lane, NodeNumber};

use super::Store;
use super::db::{Connection, Dialect, Query};
use super::hot::{Claim, ClaimDue, Due, InLane, Slice, Wanted, lanes_of, lanes_query, slices_query};
use super::pool::Use;
use super::retry::{Scope, retrying};
use super::settle::{ORPHANED, Settle};
use super::settle_sql::{Held, Hold, delete_query, put_back_query, survivors_query};
use super::task::{TaskFilter, get_query};

impl Store {
    /// The plans of the hot statements for a method, each with its name.
    pub async fn explain(&self, method: &str, now: Timestamp) -> Result<Vec<(&'static str, String)>> {
        let (dialect, node) = (self.dialect(), NodeNumber(1));
        let slices: Vec<_> =
            (0..SHARDS).map(|shard| Slice { lane: Lane::of(method), shard, from: Timestamp::EPOCH }).collect();
        let task = NewTask::new(method, &0)?.into_task(&self.maker(), now)?;
        let due = [Due::of(&task, 0, now)];
        let settled = Settle::new(task.clone(), settle(&task, &Outcome::GivenBack, now, 0.0));
        let after = task.clone();
        let lanes = lanes_of(&slices);
        let orphaned = InLane::That(ORPHANED, Vec::new());
        // A row that is there: MySQL does not plan the reading of one that is not.
        let table = self.tables().of(task.id);
        let held = Held { table, by: Hold::Node(node) };
        let some = self.list(&TaskFilter::default(), 1).await?.first().map_or(task.id, |t| t.id);
        let mut statements = vec![
            ("scan", slices_query(dialect, table, &slices, "t.id, t.version", &Wanted::Pending(Vec::new()), now, 100)),
            ("claim", Claim { table, due: &due, node, until: now, moment: now }.query(dialect)),
            ("put back", put_back_query(dialect, std::iter::once((&settled, &after)), held, now)),
            ("delete", delete_query(dialect, &[&settled], held)),
            ("survivors", survivors_query(dialect, &[&settled], held, true)),
            ("scan of lanes", lanes_query(dialect, table, &lanes, "t.id, t.version", &InLane::Pending, now, 100)),
            ("rescue", lanes_query(dialect, table, &lanes, "t.id", &orphaned, now, 100)),
            ("get", get_query(self.tables().of(some), some)),
        ];
        if dialect != Dialect::MySql {
            let direct = ClaimDue { table, slices: &slices, node, now, limit: 100, moment: now };
            statements.push(("claim due", direct.query(dialect)));
        }
        let mut plans = Vec::new();
        for (name, statement) in statements {
            let plan =
                retrying!(self.pools(), Use::Write, Scope::Statement, name, |c, _| explain(c, statement.clone())
                    .await)?;
            plans.push((name, plan));
        }
        Ok(plans)
    }
}

pub(crate) async fn explain(c: &mut Connection<'_>, statement: Query<'_>) -> sqlx::Result<String> {
    let (prefix, column) = match c.dialect() {
        Dialect::Sqlite => ("EXPLAIN QUERY PLAN", 3),
        Dialect::Postgres => ("EXPLAIN", 0),
        Dialect::MySql => ("EXPLAIN FORMAT=JSON", 0),
    };
    let rows = c.rows(statement.prefixed(prefix)).await?;
    let lines: sqlx::Result<Vec<&str>> = rows.iter().map(|row| row.columns().skip(column).text()).collect();
    Ok(lines?.join("\n"))
}
