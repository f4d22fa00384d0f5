//! Random sagas against the [`Reference`]: calls, reservations, sleeps, waits, pivots, deadlines, rounds and people, in any order of
//! outcomes, with crashes and repetitions in between. After each event nothing has happened that may not, and nothing is missing.

use std::collections::BTreeSet;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::reference::Reference;
use super::*;
use crate::clock::Timestamp;
use crate::id::TaskId;

/// How a call behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Script {
    Done,
    Refused,
    Unknown,
    /// Answers only when it is stopped, or its time is up.
    Hangs,
    /// Its task is gone; a person has it tried again.
    Lost,
    /// Fails; a person says that it is done.
    Resolved,
    /// Fails; a person has it tried again.
    Again,
    /// Fails; a person leaves it out.
    Skipped,
}

#[derive(Clone)]
struct Case {
    definition: Definition,
    /// For each step and round; what comes after is done.
    runs: Vec<Script>,
    /// For each step, and the last for the whole.
    undos: Vec<Script>,
    confirms: Vec<Script>,
    /// Chance: what comes next, and what goes wrong.
    dice: Vec<u16>,
}

/// In few lines: this is read when something has failed.
impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let definition = serde_json::to_string(&self.definition).unwrap_or_default();
        writeln!(f, "{definition}\nruns {:?}\nundos {:?}", self.runs, self.undos)?;
        write!(f, "confirms {:?}\ndice {:?}", self.confirms, self.dice)
    }
}

const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const MOST: usize = 12;
const ROUNDS: usize = 3;
/// After so much the world becomes quiet: only what is under way goes on.
const BUSY: usize = 120;

fn seconds(of: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    of.prop_map(Duration::from_secs)
}

/// What a step does, and where it goes back to if it does.
fn any_kind(i: usize) -> impl Strategy<Value = StepKind> {
    let when_up = prop_oneof![Just(WhenUp::Compensate), (0..=i).prop_map(|to| WhenUp::BackTo(format!("s{to}")))];
    let signal = (0usize..3).prop_map(|n| format!("signal-{n}"));
    let timeout = prop::option::weighted(0.7, seconds(1..60));
    prop_oneof![
        6 => Just(StepKind::Call),
        2 => (seconds(5..90), when_up.clone()).prop_map(|(ttl, when_up)| StepKind::Reserve { ttl, when_up }),
        1 => seconds(1..40).prop_map(|time| StepKind::Sleep { time }),
        2 => (signal, timeout, when_up)
            .prop_map(|(signal, timeout, when_up)| StepKind::WaitFor { signal, timeout, when_up }),
    ]
}

fn any_step(i: usize) -> impl Strategy<Value = StepDef> {
    let undo =
        prop_oneof![6 => Just(UndoKind::Compensate), 1 => Just(UndoKind::Nothing), 1 => Just(UndoKind::Irreversible)];
    let after = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    let deadline = prop::option::weighted(0.3, seconds(1..60));
    (any_kind(i), after, undo, any::<bool>(), deadline).prop_map(move |(kind, after, undo, first, deadline)| {
        let after: BTreeSet<usize> = if i == 0 { BTreeSet::new() } else { after.iter().map(|a| a.index(i)).collect() };
        let undo = match &kind {
            StepKind::Call => undo,
            StepKind::Reserve { .. } => UndoKind::Compensate,
            StepKind::Sleep { .. } | StepKind::WaitFor { .. } => UndoKind::Nothing,
        };
        StepDef {
            name: format!("s{i}"),
            kind,
            after: after.into_iter().map(|j| format!("s{j}")).collect(),
            undo,
            allow_irreversible: true,
            undo_first: first && i.is_multiple_of(3),
            deadline,
            ..StepDef::default()
        }
    })
}

/// Up to 12 steps.
fn any_definition() -> impl Strategy<Value = Definition> {
    let steps = (1..=MOST).prop_flat_map(|n| (0..n).map(any_step).collect::<Vec<_>>());
    let mode = prop_oneof![Just(Compensation::Reverse), Just(Compensation::Parallel), Just(Compensation::Graph)];
    let fail = prop_oneof![Just(OnUndoFailure::Halt), Just(OnUndoFailure::Continue)];
    let pivot = prop::option::weighted(0.3, any::<prop::sample::Index>());
    let deadline = prop::option::weighted(0.3, seconds(10..200));
    (steps, mode, fail, pivot, prop::bool::weighted(0.15), deadline).prop_map(
        |(mut steps, compensation, on_undo_failure, pivot, with, deadline)| {
            let n = steps.len();
            pivot.into_iter().for_each(|pivot| set_pivot(&mut steps, pivot.index(n)));
            mend_ways_back(&mut steps, with);
            let compensate_with = with.then(With::default);
            Definition { name: "s".into(), steps, compensation, on_undo_failure, compensate_with, deadline }
        },
    )
}

/// What is before the pivot is all before it, and what is after it all after it. What only waits is none.
fn set_pivot(steps: &mut [StepDef], pivot: usize) {
    if !matches!(steps[pivot].kind, StepKind::Call | StepKind::Reserve { .. }) {
        return;
    }
    steps[pivot].pivot = true;
    steps[pivot].after = (0..pivot).map(|i| format!("s{i}")).collect();
    steps[pivot + 1..].iter_mut().for_each(|step| step.after.push(format!("s{pivot}")));
}

/// A way back leads to the step itself if it would otherwise lead nowhere; past the pivot there is none.
fn mend_ways_back(steps: &mut [StepDef], one_handler: bool) {
    let pivot = steps.iter().position(|step| step.pivot).unwrap_or(MOST);
    let leads = |steps: &[StepDef], from: usize, to: &str| {
        let mut open = vec![from];
        while let Some(i) = open.pop() {
            if steps[i].name == to {
                return true;
            }
            open.extend(steps[i].after.iter().map(|name| name[1..].parse::<usize>().unwrap()));
        }
        false
    };
    for i in 0..steps.len() {
        let name = steps[i].name.clone();
        let ways = |to: &str| leads(steps, i, to);
        let to = match &steps[i].kind {
            StepKind::Reserve { when_up: WhenUp::BackTo(to), .. }
            | StepKind::WaitFor { when_up: WhenUp::BackTo(to), .. } => to,
            _ => continue,
        };
        let mended = match (i > pivot || one_handler, ways(to)) {
            (true, _) => WhenUp::Compensate,
            (false, true) => continue,
            (false, false) => WhenUp::BackTo(name),
        };
        if let StepKind::Reserve { when_up, .. } | StepKind::WaitFor { when_up, .. } = &mut steps[i].kind {
            *when_up = mended;
        }
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let run = prop_oneof![
        10 => Just(Script::Done),
        1 => Just(Script::Refused),
        1 => Just(Script::Unknown),
        1 => Just(Script::Hangs),
        1 => Just(Script::Lost),
        1 => Just(Script::Again),
    ];
    let late = prop_oneof![
        8 => Just(Script::Done),
        1 => Just(Script::Resolved),
        1 => Just(Script::Again),
        1 => Just(Script::Skipped),
        1 => Just(Script::Lost),
        1 => Just(Script::Unknown)
    ];
    let runs = prop::collection::vec(run, MOST * ROUNDS);
    let undos = prop::collection::vec(late.clone(), MOST + 1);
    let confirms = prop::collection::vec(late, MOST);
    (any_definition(), runs, undos, confirms, prop::collection::vec(any::<u16>(), 300))
        .prop_map(|(definition, runs, undos, confirms, dice)| Case { definition, runs, undos, confirms, dice })
}

/// A saga at work: its journal, and the tasks that the journal asked for and that have not ended.
struct World {
    case: Case,
    state: State,
    reference: Reference,
    journal: Vec<(Event, Timestamp)>,
    /// With when they began.
    tasks: Vec<(Work, Timestamp)>,
    stopped: Vec<Work>,
    now: Timestamp,
    dice: usize,
    keys: usize,
}

impl World {
    fn begin(case: Case) -> Self {
        let flow = Arc::new(Flow::new(case.definition.clone()).unwrap());
        let state = State::new(flow, Arc::new(Value::Null));
        let reference = Reference::new(&case.definition);
        let (journal, tasks, stopped) = Default::default();
        let mut world = Self { case, state, reference, journal, tasks, stopped, now: START, dice: 0, keys: 0 };
        assert!(world.tell(Some(&Event::Began)));
        world
    }

    fn roll(&mut self, n: usize) -> usize {
        self.dice += 1;
        usize::from(self.case.dice[self.dice % self.case.dice.len()]) % n
    }

    /// Tells the saga something, or the time; whether something came of it.
    fn tell(&mut self, event: Option<&Event>) -> bool {
        let allowed = event.is_none_or(|event| self.reference.allows(event, self.now));
        let next = match advance(&self.state, event.cloned(), self.now) {
            Err(_) => {
                assert!(!allowed, "{event:?} is refused: {:#?}", self.reference);
                return false;
            }
            Ok(next) => next,
        };
        for event in &next.events {
            self.reference.note(event, self.now);
            if let Event::Rollback { .. } = event {
                let runs = |work: &&Work| work.op == Op::Run;
                let names = next.stop.iter().filter(runs).filter_map(|work| work.step.as_deref());
                let stopped: BTreeSet<&str> = names.collect();
                let to_be = self.reference.to_be_stopped();
                assert!(to_be.iter().all(|name| stopped.contains(name)), "{to_be:?} are stopped, not {stopped:?}");
            }
        }
        self.reference.at_rest(self.now);
        self.journal.extend(next.events.iter().map(|event| (event.clone(), self.now)));
        self.tasks.extend(next.start.into_iter().map(|work| (work, self.now)));
        self.stopped.extend(next.stop);
        self.state = next.state;
        assert_eq!(self.state.word(), self.reference.word(), "{:#?}", self.reference);
        self.check_wants();
        assert_eq!(self.state.look_again_at(), self.reference.next_time(), "{:#?}", self.reference);
        !next.events.is_empty()
    }

    /// All work that there could be.
    fn works(&self) -> Vec<Work> {
        let steps = self.case.definition.steps.iter().zip(&self.state.steps);
        let of = |(def, step): (&StepDef, &state::StepState)| {
            let (name, round) = (def.name.clone(), step.round);
            [Op::Run, Op::Undo, Op::Confirm].map(|op| Work { step: Some(name.clone()), op, round })
        };
        steps.flat_map(of).chain([Work { step: None, op: Op::Undo, round: 1 }]).collect()
    }

    /// What is wanted is what should be; and what has failed and is wanted can begin again.
    fn check_wants(&self) {
        for work in self.works() {
            let wanted = self.state.wants(&work);
            assert_eq!(wanted, self.reference.wants(&work), "{work:?}: {:#?}", self.reference);
            let again = Event::started(work.clone());
            let begins = || advance(&self.state, Some(again.clone()), self.now).is_ok();
            assert!(!wanted || self.state.is_awaited(&work) || begins(), "{work:?}: {:#?}", self.reference);
        }
    }

    /// All that is remembered is the journal.
    fn crash(&mut self) {
        let mut state = State::new(self.state.flow.clone(), Arc::new(Value::Null));
        for (event, at) in &self.journal {
            let stored = serde_json::to_string(event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&stored).unwrap(), *event);
            state.apply(event, *at).unwrap();
        }
        assert_eq!(state, self.state);
        assert_eq!(plan::follow(&state, self.now), None, "what follows was written together with what it follows from");
    }

    /// A task has another turn: its node died or gave it back, or the attempt failed or was cut off. The journal says so, and nothing else
    /// follows. A failure that an earlier turn still reports does not count.
    fn take_over(&mut self) {
        let i = self.roll(self.tasks.len());
        let (work, _) = self.tasks[i].clone();
        if !self.state.is_awaited(&work) {
            return;
        }
        let task = TaskId::from_str("7").unwrap();
        let made = Some(self.state.seq);
        let doer = |turn| Doer { task, turn, origin: None, made };
        let (before, turn) = (self.state.begun(&work), self.journal.len() as u32);
        let started = Event::Started { work: work.clone(), task: Some(task), turn };
        let next = advance(&self.state, Some(started.clone()), self.now).unwrap();
        assert_eq!((&next.events, &next.stop), (&vec![started.clone()], &vec![]), "{started:?}");
        assert_eq!(next.start, std::slice::from_ref(&work), "which whoever has it does not make anew");
        self.journal.push((started.clone(), self.now));
        self.state = next.state;
        let begun = self.state.begun(&work);
        assert!(begun.is_by(&doer(turn)) && !begun.is_by(&doer(turn - 1)) && begun != before);
        assert_eq!(advance(&self.state, Some(started), self.now), Err(Illegal::Known));
        assert_eq!(self.state.word(), self.reference.word());
        self.check_wants();
    }

    /// What a piece of work answers, if it does.
    fn script(&self, work: &Work) -> Script {
        let place = work.step.as_ref().map_or(MOST, |name| name[1..].parse().unwrap());
        match work.op {
            Op::Run if work.round as usize > ROUNDS => Script::Done,
            Op::Run => self.case.runs[place * ROUNDS + work.round as usize - 1],
            Op::Undo => self.case.undos[place],
            Op::Confirm => self.case.confirms[place],
        }
    }

    /// Whether its step's own time is up.
    fn is_late(&self, work: &Work, since: Timestamp) -> bool {
        let step = work.step.as_deref().and_then(|name| self.case.definition.steps.iter().find(|s| s.name == name));
        step.and_then(|step| step.deadline).is_some_and(|deadline| since + deadline <= self.now)
    }

    /// One of the tasks ends, if it does.
    fn run_task(&mut self) {
        let i = self.roll(self.tasks.len());
        let (work, since) = self.tasks[i].clone();
        let is_stopped = self.stopped.contains(&work) || self.is_late(&work, since);
        let script = self.script(&work);
        if script == Script::Hangs && !is_stopped {
            return;
        }
        self.tasks.swap_remove(i);
        let done = |by: Option<&str>| Event::Done { work: work.clone(), output: json!(1), by: by.map(str::to_owned) };
        let failed = |refused| Event::Failed { work: work.clone(), refused, error: "no".into() };
        let mut events = match script {
            Script::Done => vec![done(None)],
            Script::Refused => vec![failed(true)],
            Script::Unknown | Script::Hangs => vec![failed(false)],
            Script::Lost => vec![Event::Lost { work: work.clone() }, Event::started(work.clone())],
            Script::Resolved => vec![failed(true), done(Some("ada"))],
            Script::Again if work.op == Op::Run => vec![failed(false), done(Some("ada"))],
            Script::Again => vec![failed(false), Event::started(work.clone())],
            Script::Skipped => vec![failed(false), Event::Skipped { work: work.clone(), by: "ada".into() }],
        };
        if is_stopped && self.roll(2) == 0 {
            events = vec![failed(false)];
        }
        self.say(events);
    }

    /// Outcomes, perhaps twice: the answer to the first was lost.
    fn say(&mut self, events: Vec<Event>) {
        for event in events {
            let came = self.tell(Some(&event));
            if let (Event::Started { work, .. }, true) = (&event, came) {
                // Tried again, it is done.
                self.tasks.retain(|(task, _)| task != work);
                self.tell(Some(&Event::Done { work: work.clone(), output: json!(1), by: None }));
                continue;
            }
            if self.roll(4) == 0 {
                let before = self.journal.len();
                self.tell(Some(&event));
                assert_eq!(self.journal.len(), before, "an outcome counts once");
            }
        }
    }

    /// Somebody says something, once or twice under one key.
    fn signal(&mut self) {
        let (name, keyed, repeated) = (format!("signal-{}", self.roll(3)), self.roll(2) == 0, self.roll(3) == 0);
        self.keys += 1;
        let key = keyed.then(|| format!("key-{}", self.keys));
        let signal =
            |payload: u64| Event::Signal { name: name.clone(), payload: json!(payload), by: None, key: key.clone() };
        let came = self.tell(Some(&signal(1)));
        if came && keyed && repeated {
            assert_eq!(advance(&self.state, Some(signal(1)), self.now), Err(Illegal::Known));
            let is_ended = self.state.ended.is_some();
            assert!(is_ended || matches!(advance(&self.state, Some(signal(2)), self.now), Err(Illegal::Not(_))));
        }
    }

    /// A person wants something.
    fn wish(&mut self) {
        let by = || "ada".to_owned();
        let works = self.works();
        let work = works[self.roll(works.len())].clone();
        let event = match self.roll(20) {
            0..5 => Event::Rollback { why: Why::Asked { by: by(), note: None }, to: None },
            5..10 => Event::Forward { by: by() },
            10 => Event::Input { input: json!(2), by: by() },
            11..15 => Event::Done { work, output: json!(3), by: Some(by()) },
            15..19 if self.state.wants(&work) => Event::started(work),
            15..19 => return,
            _ => Event::Ended { state: SagaState::Killed, by: Some(by()) },
        };
        self.tell(Some(&event));
    }

    /// Time passes: to just before something happens by itself, to that moment, or by chance.
    fn wait(&mut self) {
        let next = self.state.look_again_at();
        let by_chance = Duration::from_secs(self.roll(30) as u64);
        let to = match (next, self.roll(4)) {
            (Some(next), 0 | 1) => next,
            (Some(next), 2) => next - Duration::from_millis(1),
            _ => self.now + by_chance,
        };
        let is_early = next.is_none_or(|next| to < next);
        self.now = self.now.max(to);
        let came = self.tell(None);
        assert_eq!(came, !is_early, "what happens by itself happens at its time");
    }

    fn run(&mut self) {
        for turn in 0..4 * BUSY {
            if self.state.ended.is_some()
                || (self.tasks.is_empty() && self.state.look_again_at().is_none() && turn > BUSY)
            {
                break;
            }
            match self.roll(16) {
                0..8 if !self.tasks.is_empty() => self.run_task(),
                0..11 => self.wait(),
                11..13 if turn < BUSY => self.signal(),
                13 if turn < BUSY && self.roll(4) == 0 => self.wish(),
                14 => self.crash(),
                15 if !self.tasks.is_empty() => self.take_over(),
                _ => {}
            }
        }
        self.crash();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn random_sagas_do_what_they_may_and_must(case in any_case()) {
        World::begin(case).run();
    }
}

#[test]
fn a_pivot_that_is_being_undone_does_not_become_the_point_of_no_return() {
    let step = json!({ "name": "s0", "kind": { "reserve": { "ttl": "5s", "when_up": "compensate" } }, "pivot": true,
        "allow_irreversible": true });
    let definition = json!({ "name": "s", "steps": [step], "compensate_with": {} });
    let flow = Arc::new(Flow::new(serde_json::from_value(definition).unwrap()).unwrap());
    let run = Work { step: Some("s0".into()), op: Op::Run, round: 1 };
    let mut state = State::new(flow, Arc::new(Value::Null));
    for event in [Event::Began, Event::Failed { work: run.clone(), refused: false, error: "?".into() }] {
        state = advance(&state, Some(event), START).unwrap().state;
    }
    assert_eq!(state.word(), SagaState::Compensating);
    let done = Event::Done { work: run, output: json!(1), by: Some("ada".into()) };
    let Err(Illegal::Not(why)) = advance(&state, Some(done), START) else { panic!("it is being undone") };
    assert!(why.contains("is being undone"), "{why}");
}

/// A saga that is told things one after the other, at the time that it is.
struct Told {
    state: State,
    now: Timestamp,
}

impl Told {
    fn begin(steps: &Value) -> Self {
        let definition = serde_json::from_value(json!({ "name": "s", "steps": steps })).unwrap();
        let state = State::new(Arc::new(Flow::new(definition).unwrap()), Arc::new(Value::Null));
        let mut told = Self { state, now: START };
        told.hear(Event::Began);
        told
    }

    /// What follows; the tasks that begin with it.
    fn hear(&mut self, event: Event) -> Vec<Work> {
        let next = advance(&self.state, Some(event), self.now).unwrap();
        self.state = next.state;
        next.start
    }

    fn done(&mut self, work: Work) -> Vec<Work> {
        self.hear(Event::Done { work, output: json!(1), by: None })
    }

    fn refused(&mut self, work: Work) {
        self.hear(Event::Failed { work, refused: true, error: "no".into() });
    }

    fn forward(&mut self) -> Vec<Work> {
        self.hear(Event::Forward { by: "ada".into() })
    }

    fn run_of(&self, step: &str) -> &state::Doing {
        &self.state.steps[self.state.flow.place(step).unwrap()].run
    }
}

fn work(step: &str, op: Op, round: u32) -> Work {
    Work { step: Some(step.into()), op, round }
}

#[test]
fn a_step_begins_when_all_before_it_is_done_again() {
    let mut saga = Told::begin(&json!([
        { "name": "z" },
        { "name": "a", "after": ["z"] },
        { "name": "w", "after": ["a"], "undo": "nothing" },
        { "name": "b", "after": ["w"], "undo": "irreversible", "pivot": true },
    ]));
    ["z", "a", "w"].iter().for_each(|step| _ = saga.done(work(step, Op::Run, 1)));
    saga.refused(work("b", Op::Run, 1));
    saga.done(work("a", Op::Undo, 1));
    saga.refused(work("z", Op::Undo, 1));
    assert_eq!(saga.state.word(), SagaState::Stuck);
    assert_eq!(saga.forward(), [work("a", Op::Run, 2)], "what it stands on was taken back");
    let too_soon = Event::started(work("b", Op::Run, 1));
    assert_eq!(saga.state.clone().apply(&too_soon, START), Ok(()), "journals have it");
    assert_eq!(saga.done(work("a", Op::Run, 2)), [work("b", Op::Run, 1)]);
}

#[test]
fn a_wait_begins_anew_when_the_saga_goes_forward() {
    let wait = json!({ "wait_for": { "signal": "ok", "timeout": "1m", "when_up": "compensate" } });
    let mut saga = Told::begin(&json!([
        { "name": "ok", "kind": wait, "undo": "nothing" },
        { "name": "hotel" },
        { "name": "car", "after": ["hotel"] },
    ]));
    saga.done(work("hotel", Op::Run, 1));
    saga.refused(work("car", Op::Run, 1));
    saga.refused(work("hotel", Op::Undo, 1));
    let minute = Duration::from_secs(60);
    saga.now = START + 2 * minute;
    let mut before = saga.state.clone();
    assert_eq!(saga.forward(), [work("car", Op::Run, 1)]);
    assert_eq!((saga.state.word(), saga.state.look_again_at()), (SagaState::Running, Some(saga.now + minute)));
    // As it was written when the time that had passed still counted.
    for event in [Event::Forward { by: "ada".into() }, Event::TimeUp { work: work("ok", Op::Run, 1) }] {
        assert_eq!(before.apply(&event, saga.now), Ok(()), "{event:?}");
    }
}

#[test]
fn a_signal_is_kept_for_who_waits_beside_those_that_begin_anew() {
    let wait = |timeout: Value, up: Value| json!({ "wait_for": { "signal": "ok", "timeout": timeout, "when_up": up } });
    let mut saga = Told::begin(&json!([
        { "name": "r" },
        { "name": "a", "after": ["r"], "kind": wait(json!("10s"), json!({ "back_to": "r" })), "undo": "nothing" },
        { "name": "b", "kind": wait(Value::Null, json!("compensate")), "undo": "nothing" },
    ]));
    saga.done(work("r", Op::Run, 1));
    saga.now = START + Duration::from_secs(10);
    saga.state = advance(&saga.state, None, saga.now).unwrap().state;
    assert!(saga.state.word() == SagaState::Compensating && !saga.state.is_deaf_to("ok"));
    saga.hear(Event::Signal { name: "ok".into(), payload: json!(1), by: None, key: None });
    assert_eq!(saga.done(work("r", Op::Undo, 1)), [work("r", Op::Run, 2)]);
    assert_eq!(*saga.run_of("b"), state::Doing::Done);
    assert!(saga.state.signals.is_empty(), "it is heard once");
}
