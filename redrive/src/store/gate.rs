//! Gates as rows of `redrive_gate`: see [`gate`](crate::gate). What is to be written is decided there; here it is written, if the
//! generation is still the one that it was decided for.

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::gate::{Gate, GateState, Hold};
use crate::task::Lane;

use super::Store;
use super::audit::{AuditEntry, check_by};
use super::db::{Connection, Dialect, Row, query};
use super::pool::Use;
use super::retry::{Scope, retrying};

const COLUMNS: &str = "lane, generation, changed_at, open_until, failing_since, opens, probes_allowed, probes_given, probes_passed, \
    probes_failed, probes_until, state, held, name, why";
/// Bytes of what is said of a gate.
const LONGEST_WHY: usize = 1_000;

/// What a person does to a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAction {
    /// Holds it open, or closed, until it is let go.
    Hold(Hold),
    /// Lets it go: it is as it was, and if it is open it gives probes away at once.
    Release,
    /// Says that all is well: it is closed, and forgets.
    Reset,
}

impl Store {
    /// The gates that have opened, or were held, at some time: by name.
    pub async fn gates(&self) -> Result<Vec<Gate>> {
        let sql = format!("SELECT {COLUMNS} FROM redrive_gate ORDER BY name, lane");
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading the gates", |c, _| {
            let rows = c.rows(query(sql.clone())).await?;
            rows.iter().map(read_gate).collect()
        })
    }

    /// The gate of a lane, if it has a row.
    pub(crate) async fn gate(&self, lane: Lane) -> Result<Option<Gate>> {
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading a gate", |c, _| read_one(c, lane).await)
    }

    /// Those that are not simply closed, or were not a while ago.
    pub(crate) async fn active_gates(&self, since: Timestamp) -> Result<Vec<Gate>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM redrive_gate WHERE state <> 'closed' OR held IS NOT NULL OR changed_at >= ?"
        );
        retrying!(self.pools(), Use::Read, Scope::Statement, "reading the gates", |c, _| {
            let rows = c.rows(query(sql.clone()).bind(since)).await?;
            rows.iter().map(read_gate).collect()
        })
    }

    /// Removes the rows of gates that are closed, or that nobody has needed, since `before`.
    pub(crate) async fn forget_gates(&self, before: Timestamp) -> Result<u64> {
        let sql = "DELETE FROM redrive_gate WHERE held IS NULL AND changed_at < ? \
                   AND (state = 'closed' OR (COALESCE(open_until, 0) < ? AND probes_until < ?))";
        retrying!(self.pools(), Use::Write, Scope::Statement, "forgetting gates", |c, _| {
            c.execute(query(sql).bind(before).bind(before).bind(before)).await
        })
    }

    /// Changes a gate from `from`, which may be one that is not written yet. `false`: somebody else has changed it.
    pub(crate) async fn move_gate(&self, from: &Gate, to: &Gate) -> Result<bool> {
        retrying!(self.pools(), Use::Write, Scope::Transaction, "changing a gate", |c, tried| {
            make_row(c, from).await?;
            if write_gate(c, from.generation, to).await? {
                return Ok(true);
            }
            // Our earlier try, whose answer was lost, may have done it.
            Ok(tried > 0 && read_one(c, to.lane).await?.is_some_and(|now| now == *to))
        })
    }

    /// Takes probes of a round, if its numbers are still those of `from`. Not tried again: what is not known to be ours is lost.
    pub(crate) async fn take_probes(&self, from: &Gate, to: &Gate) -> Result<bool> {
        let sql = "UPDATE redrive_gate SET probes_given = ?, probes_until = CASE WHEN probes_until > ? THEN probes_until ELSE ? END \
                   WHERE lane = ? AND generation = ? AND state = 'half_open' AND held IS NULL \
                   AND probes_given = ? AND probes_passed = ? AND probes_failed = ? AND probes_until = ?";
        retrying!(self.pools(), Use::Write, Scope::Statement, "taking probes of a gate", |c, tried| {
            if tried > 0 {
                return Ok(false);
            }
            let take = query(sql).bind(to.probes_given).bind(to.probes_until).bind(to.probes_until);
            let take = take.bind(from.lane.0).bind(from.generation);
            let take = take.bind(from.probes_given).bind(from.probes_passed).bind(from.probes_failed);
            let take = take.bind(from.probes_until);
            Ok(c.execute(take).await? > 0)
        })
    }

    /// A probe may take until then: it is not lost before.
    pub(crate) async fn extend_probes(&self, lane: Lane, generation: i64, until: Timestamp) -> Result<()> {
        let sql = "UPDATE redrive_gate SET probes_until = ? \
                   WHERE lane = ? AND generation = ? AND state = 'half_open' AND probes_until < ?";
        retrying!(self.pools(), Use::Write, Scope::Statement, "giving a probe of a gate more time", |c, _| {
            c.execute(query(sql).bind(until).bind(lane.0).bind(generation).bind(until)).await.map(|_| ())
        })
    }

    /// Notes how a probe ended, and writes what `decide` makes of the gate then, in one transaction. The gate with the probe noted, and
    /// what it has become if it has changed; `None` if its round is over.
    pub(crate) async fn end_probe(
        &self,
        lane: Lane,
        generation: i64,
        passed: bool,
        decide: impl Fn(&Gate) -> Option<Gate>,
    ) -> Result<Option<(Gate, Option<Gate>)>> {
        let number = if passed { "probes_passed" } else { "probes_failed" };
        let sql = format!(
            "UPDATE redrive_gate SET {number} = {number} + 1 \
             WHERE lane = ? AND generation = ? AND state = 'half_open' AND probes_passed + probes_failed < probes_allowed"
        );
        retrying!(self.pools(), Use::Write, Scope::Transaction, "noting a probe", |c, tried| {
            // An answer that was lost may have been counted: then it counts no more.
            if tried == 0 && c.execute(query(sql.clone()).bind(lane.0).bind(generation)).await? == 0 {
                return Ok(None);
            }
            let Some(gate) = read_one(c, lane).await?.filter(|gate| gate.generation == generation) else {
                return Ok(None);
            };
            let next = decide(&gate);
            if let Some(next) = &next {
                write_gate(c, generation, next).await?;
            }
            Ok(Some((gate, next)))
        })
    }

    /// A probe has ended and says nothing of its target: another one may go instead. Not tried again: at worst it is lost.
    pub(crate) async fn give_probe_back(&self, lane: Lane, generation: i64) -> Result<()> {
        let sql = "UPDATE redrive_gate SET probes_given = probes_given - 1 \
                   WHERE lane = ? AND generation = ? AND state = 'half_open' AND probes_given > probes_passed + probes_failed";
        retrying!(self.pools(), Use::Write, Scope::Statement, "giving a probe of a gate back", |c, tried| {
            if tried == 0 {
                c.execute(query(sql).bind(lane.0).bind(generation)).await?;
            }
            Ok(())
        })
    }

    /// What a person does to the gate of a lane, under their name.
    pub async fn act_on_gate(
        &self,
        lane: Lane,
        action: GateAction,
        by: &str,
        note: Option<&str>,
        now: Timestamp,
    ) -> Result<Gate> {
        check_by(by)?;
        let word = match action {
            GateAction::Hold(Hold::Open) => "gate.hold_open",
            GateAction::Hold(Hold::Closed) => "gate.hold_closed",
            GateAction::Release => "gate.release",
            GateAction::Reset => "gate.reset",
        };
        let record = self.record(AuditEntry::new(by, word, "").noting(note), now);
        let why = note.map(|note| crate::task::storable(note, LONGEST_WHY));
        let changed = retrying!(self.pools(), Use::Write, Scope::Transaction, "changing a gate by hand", |c, _| {
            let Some(before) = read_one(c, lane).await? else { return Ok(None) };
            let after = match action {
                GateAction::Hold(hold) => before.held(Some(hold), why.as_deref(), now),
                GateAction::Release => before.held(None, None, now),
                GateAction::Reset => before.reset(now),
            };
            if !write_gate(c, before.generation, &after).await? {
                return Ok(Some(None)); // another one was faster; look again
            }
            let said = |gate: &Gate| serde_json::json!({ "name": gate.name, "state": gate.state, "held": gate.held });
            let record = record.changed(Some(said(&before)), Some(said(&after)));
            record.of(&before.name).write(c, now).await?;
            Ok(Some(Some(after)))
        })?;
        match changed {
            Some(Some(gate)) => Ok(gate),
            Some(None) => Err(Error::Conflict {
                doing: "change the gate",
                id: lane.0.to_string(),
                why: "it changed just now; try again".into(),
            }),
            None => Err(Error::NotFound { what: "gate", id: lane.0.to_string() }),
        }
    }

    /// Makes a row for the gate of a lane that has never opened, so that it can be held.
    pub async fn make_gate(&self, lane: Lane, name: &str, now: Timestamp) -> Result<()> {
        let gate = Gate::new(lane, &crate::task::storable(name, 500), now);
        retrying!(self.pools(), Use::Write, Scope::Statement, "making a gate", |c, _| make_row(c, &gate).await)
    }
}

/// A gate that has never changed has no row.
async fn make_row(c: &mut Connection<'_>, gate: &Gate) -> sqlx::Result<()> {
    if gate.generation > 0 {
        return Ok(());
    }
    let (insert, once) = match c.dialect() {
        Dialect::MySql => ("INSERT IGNORE", ""),
        Dialect::Sqlite | Dialect::Postgres => ("INSERT", "ON CONFLICT DO NOTHING"),
    };
    let sql = format!(
        "{insert} INTO redrive_gate (lane, generation, changed_at, state, name) VALUES (?, 0, ?, 'closed', ?) {once}"
    );
    c.execute(query(sql).bind(gate.lane.0).bind(gate.changed_at).bind(&*gate.name)).await.map(|_| ())
}

async fn write_gate(c: &mut Connection<'_>, from: i64, to: &Gate) -> sqlx::Result<bool> {
    let sql = "UPDATE redrive_gate SET generation = ?, changed_at = ?, open_until = ?, failing_since = ?, opens = ?, \
               probes_allowed = ?, probes_given = ?, probes_passed = ?, probes_failed = ?, probes_until = ?, \
               state = ?, held = ?, why = ? WHERE lane = ? AND generation = ?";
    let why = to.why.as_deref().map(|why| crate::task::storable(why, LONGEST_WHY));
    let write =
        query(sql).bind(to.generation).bind(to.changed_at).bind(to.open_until).bind(to.failing_since).bind(to.opens);
    let write = write.bind(to.probes_allowed).bind(to.probes_given).bind(to.probes_passed).bind(to.probes_failed);
    let write = write.bind(to.probes_until).bind(to.state.as_str());
    let write = write.bind(to.held.map(Hold::as_str)).bind(why.as_deref()).bind(to.lane.0).bind(from);
    Ok(c.execute(write).await? > 0)
}

async fn read_one(c: &mut Connection<'_>, lane: Lane) -> sqlx::Result<Option<Gate>> {
    let row = c.row(query(format!("SELECT {COLUMNS} FROM redrive_gate WHERE lane = ?")).bind(lane.0)).await?;
    row.as_ref().map(read_gate).transpose()
}

fn read_gate(row: &Row) -> sqlx::Result<Gate> {
    let mut c = row.columns();
    let count = |n: i64| u32::try_from(n).unwrap_or(0);
    Ok(Gate {
        lane: Lane(i32::try_from(c.int()?).unwrap_or_default()),
        generation: c.int()?,
        changed_at: Timestamp::from_millis(c.int()?),
        open_until: c.opt_int()?.map(Timestamp::from_millis),
        failing_since: c.opt_int()?.map(Timestamp::from_millis),
        opens: count(c.int()?),
        probes_allowed: count(c.int()?),
        probes_given: count(c.int()?),
        probes_passed: count(c.int()?),
        probes_failed: count(c.int()?),
        probes_until: Timestamp::from_millis(c.int()?),
        state: GateState::read(c.text()?),
        held: c.opt_text()?.and_then(Hold::read),
        name: c.text()?.to_owned(),
        why: c.opt_text()?.map(str::to_owned),
    })
}
