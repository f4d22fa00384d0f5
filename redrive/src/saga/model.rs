//! Random sagas against a simple reference: the same end, whatever the order of outcomes, crashes and repetitions; undone in a valid
//! order, nothing twice, nothing that had no effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::clock::Timestamp;

/// How a step behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Script {
    Done,
    Refused,
    Unknown,
}

/// How the undo of a step behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum UndoScript {
    Done,
    /// Fails; a person brings it to an end.
    Redone,
    /// Fails; a person leaves it out.
    Skipped,
    /// Fails; nobody does anything.
    Stuck,
}

#[derive(Clone, Debug)]
struct Case {
    definition: Definition,
    runs: Vec<Script>,
    undos: Vec<UndoScript>,
    /// Chance: which outcome comes next, and what goes wrong.
    dice: Vec<u16>,
}

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn any_step(i: usize) -> impl Strategy<Value = StepDef> {
    let undo =
        prop_oneof![6 => Just(UndoKind::Compensate), 1 => Just(UndoKind::Nothing), 1 => Just(UndoKind::Irreversible)];
    (prop::collection::vec(any::<prop::sample::Index>(), 0..3), undo, any::<bool>()).prop_map(
        move |(after, undo, first)| {
            let after: BTreeSet<usize> =
                if i == 0 { BTreeSet::new() } else { after.iter().map(|a| a.index(i)).collect() };
            StepDef {
                name: format!("s{i}"),
                after: after.into_iter().map(|j| format!("s{j}")).collect(),
                undo,
                allow_irreversible: true,
                undo_first: first && i.is_multiple_of(3),
                ..StepDef::default()
            }
        },
    )
}

/// Up to 12 steps. With a pivot, what is before it is all before it, and what is after it all after it.
fn any_definition() -> impl Strategy<Value = Definition> {
    let steps = (1usize..=12).prop_flat_map(|n| (0..n).map(any_step).collect::<Vec<_>>());
    let mode = prop_oneof![Just(Compensation::Reverse), Just(Compensation::Parallel), Just(Compensation::Graph)];
    let fail = prop_oneof![Just(OnUndoFailure::Halt), Just(OnUndoFailure::Continue)];
    (steps, mode, fail, prop::option::weighted(0.3, any::<prop::sample::Index>()), prop::bool::weighted(0.15)).prop_map(
        |(mut steps, compensation, on_undo_failure, pivot, with)| {
            if let Some(pivot) = pivot.map(|p| p.index(steps.len())) {
                let name = |i: usize| format!("s{i}");
                for (i, step) in steps.iter_mut().enumerate() {
                    step.pivot = i == pivot;
                    match i.cmp(&pivot) {
                        std::cmp::Ordering::Less => {}
                        std::cmp::Ordering::Equal => step.after = (0..i).map(name).collect(),
                        std::cmp::Ordering::Greater => step.after.push(name(pivot)),
                    }
                }
            }
            let compensate_with = with.then(With::default);
            Definition { name: "s".into(), steps, compensation, on_undo_failure, compensate_with, deadline: None }
        },
    )
}

fn any_case() -> impl Strategy<Value = Case> {
    let run = prop_oneof![8 => Just(Script::Done), 1 => Just(Script::Refused), 1 => Just(Script::Unknown)];
    let undo = prop_oneof![
        8 => Just(UndoScript::Done),
        1 => Just(UndoScript::Redone),
        1 => Just(UndoScript::Skipped),
        1 => Just(UndoScript::Stuck)
    ];
    let (runs, undos) = (prop::collection::vec(run, 12), prop::collection::vec(undo, 13));
    (any_definition(), runs, undos, prop::collection::vec(any::<u16>(), 200))
        .prop_map(|(definition, runs, undos, dice)| Case { definition, runs, undos, dice })
}

/// A saga at work: its journal, and the tasks that the journal asked for and that have not ended.
struct World {
    case: Case,
    state: State,
    journal: Vec<Event>,
    tasks: Vec<Work>,
    dice: usize,
}

impl World {
    fn begin(case: Case) -> Self {
        let flow = Arc::new(Flow::new(case.definition.clone()).unwrap());
        let state = State::new(flow, Arc::new(Value::Null));
        let mut world = Self { case, state, journal: Vec::new(), tasks: Vec::new(), dice: 0 };
        world.tell(Event::Began);
        world
    }

    fn roll(&mut self, n: usize) -> usize {
        self.dice += 1;
        usize::from(self.case.dice[self.dice % self.case.dice.len()]) % n
    }

    fn tell(&mut self, event: Event) {
        match advance(&self.state, Some(event), NOW) {
            Err(Illegal::Known) => {}
            Err(Illegal::Not(why)) => panic!("{why}\n{:#?}", self.journal),
            Ok(next) => {
                self.journal.extend(next.events);
                self.tasks.extend(next.start);
                self.state = next.state;
            }
        }
    }

    /// All that is remembered is the journal.
    fn crash(&mut self) {
        let mut state = State::new(self.state.flow.clone(), Arc::new(Value::Null));
        for event in &self.journal {
            let stored = serde_json::to_string(event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&stored).unwrap(), *event);
            state.apply(event, NOW).unwrap();
        }
        assert_eq!(state, self.state);
        assert_eq!(plan::follow(&state, NOW), None, "what follows was written together with what it follows from");
    }

    fn place(&self, work: &Work) -> usize {
        work.step.as_ref().map_or(12, |name| self.state.flow.place(name).unwrap())
    }

    /// What this work ends with, and what a person does then.
    fn outcome(&self, work: &Work) -> Vec<Event> {
        let work = work.clone();
        let done = |by: Option<&str>| Event::Done { work: work.clone(), output: json!(1), by: by.map(str::to_owned) };
        let failed = |refused| Event::Failed { work: work.clone(), refused, error: "no".into() };
        match work.op {
            Op::Confirm => vec![done(None)],
            Op::Run => match self.case.runs[self.place(&work)] {
                Script::Done => vec![done(None)],
                Script::Refused => vec![failed(true)],
                Script::Unknown => vec![failed(false)],
            },
            Op::Undo => match self.case.undos[self.place(&work)] {
                UndoScript::Done => vec![done(None)],
                UndoScript::Redone => vec![failed(true), done(Some("ada"))],
                UndoScript::Skipped => vec![failed(false), Event::Skipped { work: work.clone(), by: "ada".into() }],
                UndoScript::Stuck => vec![failed(false)],
            },
        }
    }

    fn run(&mut self) {
        while !self.tasks.is_empty() {
            let i = self.roll(self.tasks.len());
            let work = self.tasks.swap_remove(i);
            for event in self.outcome(&work) {
                self.tell(event.clone());
                if self.roll(4) == 0 {
                    self.crash();
                }
                if self.roll(4) == 0 && !matches!(event, Event::Skipped { .. }) {
                    let before = self.journal.len();
                    self.tell(event); // its answer was lost: said again
                    assert_eq!(self.journal.len(), before, "an outcome counts once");
                }
            }
        }
        self.crash();
    }
}

/// What the journal says was started and was done, by place.
#[derive(Default, Debug)]
struct Trace {
    started: Vec<(usize, Op)>,
    ended: BTreeMap<(usize, &'static str), &'static str>,
}

fn trace(world: &World) -> Trace {
    let mut trace = Trace::default();
    for event in &world.journal {
        let (work, how) = match event {
            Event::Started { work } => {
                trace.started.push((world.place(work), work.op));
                continue;
            }
            Event::Done { work, .. } => (work, "done"),
            Event::Skipped { work, .. } => (work, "skipped"),
            Event::Failed { work, refused: true, .. } => (work, "refused"),
            Event::Failed { work, .. } => (work, "unknown"),
            _ => continue,
        };
        trace.ended.insert((world.place(work), work.op.as_str()), how);
    }
    trace
}

/// The end that follows from what happened, told as simply as it can be.
fn expected(world: &World, trace: &Trace) -> SagaState {
    let steps = &world.case.definition.steps;
    let ran = |i: usize| trace.ended.get(&(i, "run")).copied();
    let undone = |i: usize| trace.ended.get(&(i, "undo")).copied();
    let is = |i: usize, kind: UndoKind| steps[i].undo == kind;
    let all: Vec<usize> = (0..steps.len()).collect();
    if all.iter().all(|i| ran(*i) == Some("done")) {
        return SagaState::Succeeded;
    }
    let past_pivot = all.iter().any(|i| steps[*i].pivot && ran(*i) == Some("done"));
    let undecidable = all.iter().any(|i| is(*i, UndoKind::Irreversible) && ran(*i) == Some("unknown"));
    let rolled_back = world.journal.iter().any(|e| matches!(e, Event::Rollback { .. }));
    if past_pivot || (undecidable && !rolled_back) {
        return SagaState::Stuck;
    }
    let happened = |i: &usize| matches!(ran(*i), Some("done" | "unknown"));
    let wanted: Vec<usize> = all.iter().copied().filter(|i| happened(i) && is(*i, UndoKind::Compensate)).collect();
    let gap = all.iter().any(|i| happened(i) && is(*i, UndoKind::Irreversible));
    let ends: Vec<_> = match world.case.definition.compensate_with {
        Some(_) if wanted.is_empty() => Vec::new(),
        Some(_) => vec![undone(12)],
        None => wanted.iter().map(|i| undone(*i)).collect(),
    };
    if ends.iter().any(|end| !matches!(end, Some("done" | "skipped"))) {
        return SagaState::Stuck;
    }
    match (gap || ends.contains(&Some("skipped")), ends.is_empty()) {
        (true, _) => SagaState::CompensatedWithGaps,
        (false, false) => SagaState::Compensated,
        (false, true) => SagaState::Failed,
    }
}

/// Whether undos began only when they might.
fn check_order(world: &World) {
    let flow = &world.state.flow;
    let definition = &world.case.definition;
    let goes_on = definition.on_undo_failure == OnUndoFailure::Continue;
    let (mut order, mut undone, mut failed, mut open): (Vec<usize>, BTreeSet<_>, BTreeSet<_>, BTreeSet<_>) =
        Default::default();
    let mut happened: BTreeSet<usize> = BTreeSet::new();
    let mut back = false;
    for event in &world.journal {
        match event {
            Event::Rollback { .. } => back = true,
            Event::Started { work } if work.op == Op::Run => {
                assert!(!back, "nothing new begins on the way back");
                order.push(world.place(work));
                open.insert(world.place(work));
            }
            Event::Done { work, .. } | Event::Failed { work, refused: false, .. } if work.op == Op::Run => {
                open.remove(&world.place(work));
                happened.insert(world.place(work));
            }
            Event::Failed { work, .. } if work.op == Op::Run => _ = open.remove(&world.place(work)),
            Event::Started { work } if work.step.is_none() => assert!(open.is_empty(), "all must be known first"),
            Event::Started { work } => {
                let i = world.place(work);
                assert!(back && happened.contains(&i) && !undone.contains(&i), "s{i} is undone");
                assert!(failed.is_empty() || goes_on, "halt");
                let needs = |j: usize| definition.steps[j].undo == UndoKind::Compensate && j != i;
                let left = || order.iter().copied().filter(|j| needs(*j) && !undone.contains(j) && !failed.contains(j));
                let left = || left().filter(|j| happened.contains(j) || open.contains(j));
                let first = |j: usize| definition.steps[j].undo_first;
                assert!(first(i) || !left().any(first), "s{i} before one that is undone first");
                let at = |j: usize| order.iter().position(|k| *k == j).unwrap();
                let alike = |j: &usize| first(*j) == first(i);
                match definition.compensation {
                    Compensation::Reverse => assert!(left().filter(alike).all(|j| at(j) < at(i)), "s{i} in reverse"),
                    Compensation::Graph => {
                        assert!(left().filter(alike).all(|j| flow.below[i] >> j & 1 == 0), "s{i} by the graph");
                    }
                    Compensation::Parallel => {}
                }
            }
            Event::Done { work, .. } | Event::Skipped { work, .. } if work.op == Op::Undo => {
                undone.insert(world.place(work));
                failed.remove(&world.place(work));
            }
            Event::Failed { work, .. } if work.op == Op::Undo => _ = failed.insert(world.place(work)),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn random_sagas_end_as_the_reference_says(case in any_case()) {
        let mut world = World::begin(case);
        world.run();
        let trace = trace(&world);
        let unique: BTreeSet<_> = trace.started.iter().map(|(i, op)| (*i, op.as_str())).collect();
        prop_assert_eq!(unique.len(), trace.started.len(), "each is started once");
        check_order(&world);
        prop_assert_eq!(world.state.word(), expected(&world, &trace), "{:#?}", world.journal);
    }
}
