//! How long it took after the death of a server until work went on: from the ledgers and from what the witness saw.

use crate::evidence::{Answer, Evidence};
use crate::faults::SERVER_DEAD;
use crate::ledger::Event;

/// One line for each server that was killed.
pub fn print(evidence: &Evidence) {
    for line in &evidence.lines {
        let Event::Fault { said } = &line.event else { continue };
        let Some(server) = said.strip_prefix(SERVER_DEAD) else { continue };
        println!(
            "after the death of server{server}: first enqueue in {}, first task done in {}",
            seconds(line.t, first_enqueue(evidence, line.t)),
            seconds(line.t, first_done(evidence, line.t))
        );
    }
}

/// When the first enqueue was acknowledged that was asked for after `t`.
fn first_enqueue(evidence: &Evidence, t: u64) -> Option<u64> {
    let acked = |n: &String| {
        let ask = evidence.asks.get(n)?;
        (ask.t > t && matches!(ask.answer, Some(Answer::Acked { .. }))).then_some(())
    };
    evidence.lines.iter().filter(|line| line.t > t).find_map(|line| match &line.event {
        Event::Acked { n, .. } => acked(n).map(|()| line.t),
        _ => None,
    })
}

/// When the first task was done that somebody took after `t`.
fn first_done(evidence: &Evidence, t: u64) -> Option<u64> {
    let done = evidence.seen.values().filter_map(|changes| {
        let [.., taken, gone] = &changes[..] else { return None };
        let is_running = taken.new.as_ref().is_some_and(|new| new.status == 1);
        let (taken, gone) = (taken.at as u64 * 1_000, gone.new.is_none().then_some(gone.at as u64 * 1_000)?);
        (is_running && taken > t).then_some(gone)
    });
    done.min()
}

fn seconds(from: u64, to: Option<u64>) -> String {
    to.map_or("never".into(), |to| format!("{:.2} s", to.saturating_sub(from) as f64 / 1_000_000.0))
}
