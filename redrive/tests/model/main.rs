//! The ownership protocol, every way that it can go: claim, beat, fence, rescue, settle, cancel, crash.
//!
//! The checker takes every possible step in every state that can be reached, and looks at each. A property that fails comes
//! with the steps that lead there. What is checked here is the protocol, not the code; the names are those of the code.
//!
//! *State.* The database (`database.rs`): for each task its row, with status, version and owner; for each number whether it
//! is dead, and for how long its beat has stood still. Two nodes (`node.rs`): for how long each may still work, and what it
//! has in hand. Between them statements: sent, executed at some later time, answered at some later time still. An answer may
//! be lost; then the statement is sent again, while the first copy may yet be executed, even after its sender has crashed or
//! was fenced (`State::late`).
//!
//! *Invariants* (`properties.rs`). A task is in one place and ends once. At no time is it executed twice, not even by the same
//! node. No claim or settle of a dead number changes a row. Whoever owns a running row knows it, or is dead or will be
//! declared so: nothing gets stuck, and if from any moment on nothing fails, every task ends (`calm.rs`). A settle that is
//! recognised after its answer was lost was ours.
//!
//! *Failure.* At any time, and any number of times: a crash, with a new life under a fresh number; a lost answer; a node that
//! does not beat for too long; a person who cancels; a handler that fails. There is no end of time. What is bounded: the
//! nodes, the tasks, the statements that are late at the same time.
//!
//! What is left out, and why that leaves nothing out:
//! - Views. Every node may claim every pending task at any time; a view only forbids some of that.
//! - Watching. A watcher that reads without pause knows how long a beat has stood still, so that is kept with the number.
//!   Others know it later, and fence later, which is possible here too. That fences and rescues are sent before they are
//!   executed is left out likewise: their conditions are looked at when they are executed.
//! - Beats that come late. They make a watcher wait; the watcher may wait here anyway.
//! - States that differ only in what can no longer have an effect are one (`normal.rs`). `plain` undoes the bolder part of it.
//!
//! Every check that the protocol makes is there for a reason: each test at the end takes one away, or makes some other mistake
//! that is easily made, and the checker must find what it leads to.

mod calm;
mod database;
mod node;
mod normal;
mod properties;
mod protocol;
mod steps;

use stateright::{Checker, HasDiscoveries, Model};

use properties::{ENDS, FENCED, IN_HANDS, ONE_OWNER, ONE_PLACE, RECOGNISED};
use protocol::{Mistake, Protocol};

const ONE_TASK: Protocol =
    Protocol { tasks: 1, hands: 1, late: 1, lease: 1, max_crashes: 2, sweeps: false, mistake: None, plain: false };

/// No mistake needs this many steps to show.
const DEEP: usize = 20;

/// Explores all there is.
fn holds(p: Protocol) {
    let checker = p.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.is_done());
    println!("{} states, {} steps between them", checker.unique_state_count(), checker.state_count());
}

#[test]
fn one_task() {
    holds(Protocol { plain: true, ..ONE_TASK });
}

#[test]
fn one_task_that_a_node_takes_up_twice() {
    holds(Protocol { hands: 2, late: 2, ..ONE_TASK });
}

#[test]
fn one_task_and_a_longer_lease() {
    holds(Protocol { lease: 2, ..ONE_TASK });
}

#[test]
fn one_task_and_claims_that_are_given_up() {
    holds(Protocol { hands: 2, sweeps: true, ..ONE_TASK });
}

#[test]
fn two_tasks() {
    holds(Protocol { tasks: 2, ..ONE_TASK });
}

/// The checker finds that this mistake breaks this property. It looks ever deeper, for the shortest way there.
fn breaks(p: Protocol, mistake: Mistake, property: &'static str) {
    let p = Protocol { mistake: Some(mistake), ..p };
    let search = || p.checker().finish_when(HasDiscoveries::AnyOf([property].into()));
    let found = |depth| search().target_max_depth(depth).spawn_bfs().join().discovery(property);
    let steps = (1..=DEEP).find_map(found).expect("the mistake is found").into_actions();
    println!("{mistake:?}: not \"{property}\", in {} steps: {steps:?}", steps.len());
}

/// And no other, wherever it leads.
fn breaks_only(p: Protocol, mistake: Mistake, property: &'static str) {
    let checker = Protocol { mistake: Some(mistake), ..p }.checker().spawn_bfs().join();
    let broken: Vec<_> = checker.discoveries().into_keys().collect();
    assert_eq!(broken, [property]);
}

#[test]
fn a_settle_looks_at_the_fence() {
    breaks_only(ONE_TASK, Mistake::SettleWithoutFence, FENCED);
}

/// Nothing else breaks: the version alone keeps owners apart, and what a dead number gets is rescued. This is worth knowing,
/// because PostgreSQL, when it has to wait for a row, has looked at the node table before it waited.
#[test]
fn a_claim_looks_at_the_fence() {
    breaks_only(ONE_TASK, Mistake::WriteWithoutFence, FENCED);
    breaks_only(Protocol { hands: 2, sweeps: true, ..ONE_TASK }, Mistake::WriteWithoutFence, FENCED);
}

#[test]
fn a_settle_looks_at_the_version() {
    breaks(ONE_TASK, Mistake::SettleWithoutVersion, ONE_OWNER);
}

#[test]
fn an_end_is_recorded_only_if_the_row_was_there() {
    breaks(ONE_TASK, Mistake::EndWithoutLooking, ONE_PLACE);
}

#[test]
fn a_fence_comes_after_a_lease_of_watching() {
    breaks(ONE_TASK, Mistake::FenceWithoutWatching, ONE_OWNER);
}

#[test]
fn a_rescue_comes_after_a_fence() {
    breaks(ONE_TASK, Mistake::RescueWithoutFence, ONE_OWNER);
}

#[test]
fn a_rescue_takes_the_number_off_the_row() {
    breaks(Protocol { plain: true, ..ONE_TASK }, Mistake::RescueLeavesOwner, RECOGNISED);
}

#[test]
fn a_cancel_leaves_the_version_of_a_running_row() {
    breaks(ONE_TASK, Mistake::CancelBumpsVersion, IN_HANDS);
    breaks(ONE_TASK, Mistake::CancelBumpsVersion, ENDS);
}

#[test]
fn a_lease_counts_from_before_the_beat_was_sent() {
    breaks(ONE_TASK, Mistake::TrustReplyTime, ONE_OWNER);
}

#[test]
fn handlers_are_stopped_when_the_lease_is_over() {
    breaks(ONE_TASK, Mistake::WorkOn, ONE_OWNER);
}

#[test]
fn nothing_is_started_without_a_lease() {
    breaks(ONE_TASK, Mistake::StartWithoutLease, ONE_OWNER);
}

#[test]
fn nothing_is_started_that_an_earlier_number_claimed() {
    breaks(ONE_TASK, Mistake::StartUnderNewNumber, ONE_OWNER);
}

#[test]
fn every_claim_has_a_moment_of_its_own() {
    breaks(Protocol { hands: 2, ..ONE_TASK }, Mistake::ClaimWithoutMoment, ONE_OWNER);
}

#[test]
fn a_claim_sent_again_claims_before_it_looks() {
    breaks(ONE_TASK, Mistake::LookBeforeClaim, IN_HANDS);
    breaks(ONE_TASK, Mistake::LookBeforeClaim, ENDS);
}

#[test]
fn a_claim_is_not_given_up_without_a_sweep() {
    breaks(ONE_TASK, Mistake::GiveUpClaim, IN_HANDS);
    breaks(ONE_TASK, Mistake::GiveUpClaim, ENDS);
}

#[test]
fn a_sweep_leaves_claims_alone_that_are_under_way() {
    breaks(Protocol { hands: 2, sweeps: true, ..ONE_TASK }, Mistake::SweepClaims, ONE_OWNER);
}

#[test]
fn a_node_knows_its_tasks_by_id_and_version() {
    breaks(Protocol { hands: 2, plain: true, ..ONE_TASK }, Mistake::ForgetById, IN_HANDS);
}
