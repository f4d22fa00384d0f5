//! Many transactions of one step at once, in whatever order they come: what each was told must be what a simple model
//! says of those before it, and the effects must be those that a saga may have.
//!
//! Each transaction writes what it was told into a log beside its effect. The log's order is that of the places: whoever depends on
//! another's place has waited for its commit. So the model can be asked line by line.

use std::sync::Arc;

use redrive::barrier::{BarrierKey, Op};
use serde_json::{Value as Json, json};
use tokio::sync::Mutex;

use crate::harness::*;
use crate::party::*;

stores!(two_hundred_interleavings_agree_with_the_model);

const ROUNDS: u64 = 200;
/// Connections, and transactions on each in a round.
const AT_ONCE: u64 = 4;
const EACH: u64 = 2;

/// What happens in one transaction.
#[derive(Clone, Copy, Debug)]
struct Call {
    op: Op,
    commits: bool,
    level: &'static str,
    number: u64,
}

/// A line of the log.
#[derive(Debug)]
struct Line {
    op: Op,
    said: Said,
    number: i64,
}

/// What is known of a step: who ran, or took its place, and who ended it.
#[derive(Debug, Default)]
struct Model {
    ran: Option<Json>,
    shut: bool,
    ended: Option<(Op, Json)>,
}

impl Model {
    fn next(&mut self, op: Op, result: Json) -> Said {
        match op {
            Op::Run => match &self.ran {
                Some(kept) => Said::Duplicate(Some(kept.clone())),
                None if self.shut => Said::Dangling,
                None => {
                    self.ran = Some(result);
                    Said::Proceed
                }
            },
            Op::Undo | Op::Confirm if self.ran.is_none() => {
                self.shut = true;
                if op == Op::Undo { Said::NullUndo } else { Said::Dangling }
            }
            Op::Undo | Op::Confirm => match &self.ended {
                Some((by, kept)) if *by == op => Said::Duplicate(Some(kept.clone())),
                Some(_) => Said::Dangling,
                None => {
                    self.ended = Some((op, result));
                    Said::Proceed
                }
            },
        }
    }
}

async fn two_hundred_interleavings_agree_with_the_model(db: Db) {
    let serial = match db.kind {
        Kind::Sqlite => "INTEGER PRIMARY KEY AUTOINCREMENT",
        Kind::Postgres => "BIGSERIAL PRIMARY KEY",
        Kind::MySql => "BIGINT AUTO_INCREMENT PRIMARY KEY",
    };
    let engine = if db.kind == Kind::MySql { "ENGINE=InnoDB" } else { "" };
    let log = format!(
        "CREATE TABLE log (line {serial}, round BIGINT NOT NULL, number BIGINT NOT NULL, op BIGINT NOT NULL, said BIGINT NOT NULL, \
         kept BIGINT NOT NULL) {engine}"
    );
    db.sql(&log).await;
    let mut parties = Vec::new();
    for _ in 0..AT_ONCE {
        parties.push(Arc::new(Mutex::new(Party::of(&db).await)));
    }
    let mut told = [0; 4];
    for round in 0..ROUNDS {
        play(&db, &parties, round).await;
        for line in check(&db, round).await {
            told[number_of(&line.said).0 as usize] += 1;
        }
    }
    assert!(told.iter().all(|n| *n >= ROUNDS / 20), "each answer was there often enough to say something: {told:?}");
}

/// One round: all calls, some at once and some after the other.
async fn play(db: &Db, parties: &[Arc<Mutex<Party>>], round: u64) {
    let mut players = tokio::task::JoinSet::new();
    for (n, party) in parties.iter().enumerate() {
        let (party, kind) = (party.clone(), db.kind);
        players.spawn(async move {
            let mut party = party.lock().await;
            let mut dice = Dice(round * 1_000_003 + n as u64 + 1);
            for i in 0..EACH {
                let call = call(&mut dice, kind, n as u64 * EACH + i);
                while !make(&mut party, kind, round, call, &mut dice).await {}
            }
        });
    }
    while let Some(played) = players.join_next().await {
        played.unwrap();
    }
}

fn call(dice: &mut Dice, kind: Kind, number: u64) -> Call {
    let op = [Op::Run, Op::Run, Op::Run, Op::Undo, Op::Undo, Op::Confirm][dice.roll(6)];
    let levels = ["READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
    let level = if kind == Kind::Sqlite { "" } else { levels[dice.roll(4)] };
    Call { op, commits: dice.roll(4) > 0, level, number }
}

/// One transaction; `false`: it must be made again.
async fn make(party: &mut Party, kind: Kind, round: u64, call: Call, dice: &mut Dice) -> bool {
    let tried = try_to_make(party, kind, round, call, dice).await;
    let end = if tried.is_ok() && call.commits { "COMMIT" } else { "ROLLBACK" };
    match tried {
        Err(e) if !e.is_transient() => panic!("round {round}, {call:?}: {e}"),
        // On MySQL and PostgreSQL a commit may fail, too: then nothing of it is there.
        tried => party.raw.sql(end).await.is_ok() && tried.is_ok(),
    }
}

async fn try_to_make(party: &mut Party, kind: Kind, round: u64, call: Call, dice: &mut Dice) -> redrive::Result<()> {
    dice.pause().await;
    let begin = match kind {
        Kind::Sqlite => "BEGIN IMMEDIATE".to_owned(),
        Kind::Postgres => format!("BEGIN ISOLATION LEVEL {}", call.level),
        Kind::MySql => format!("SET SESSION TRANSACTION ISOLATION LEVEL {}; BEGIN", call.level),
    };
    party.raw.sql(&begin).await.unwrap();
    dice.pause().await;
    let key = BarrierKey::new(format!("saga-{round}"), "step", call.op);
    let said = party.enter_keeping(&key, json!(call.number)).await?;
    dice.pause().await;
    let (said, kept) = number_of(&said);
    let (number, op) = (call.number, call.op as i64);
    let line =
        format!("INSERT INTO log (round, number, op, said, kept) VALUES ({round}, {number}, {op}, {said}, {kept})");
    party.raw.sql(&line).await.unwrap();
    dice.pause().await;
    Ok(())
}

/// Goes through what was committed, in its order.
async fn check(db: &Db, round: u64) -> Vec<Line> {
    let mut raw = Raw::connect(db).await;
    let packed = format!(
        "SELECT number * 10000 + op * 1000 + said * 100 + kept + 1 FROM log WHERE round = {round} ORDER BY line"
    );
    let lines: Vec<Line> = raw.all(&packed).await.into_iter().map(unpacked).collect();
    let mut model = Model::default();
    for line in &lines {
        let right = model.next(line.op, json!(line.number));
        assert_eq!(line.said, right, "round {round}: {line:?} of {lines:#?}");
    }
    let effects = |op| lines.iter().filter(|line| line.op == op && line.said == Said::Proceed).count();
    let (runs, ends) = (effects(Op::Run), effects(Op::Undo) + effects(Op::Confirm));
    assert!(runs <= 1 && ends <= runs, "round {round}: {lines:#?}");
    lines
}

/// An answer as two numbers, the second what was kept.
fn number_of(said: &Said) -> (i64, i64) {
    match said {
        Said::Proceed => (0, -1),
        Said::NullUndo => (1, -1),
        Said::Dangling => (2, -1),
        Said::Duplicate(kept) => (3, kept.as_ref().and_then(Json::as_i64).unwrap()),
    }
}

fn unpacked(line: i64) -> Line {
    let op = [Op::Run, Op::Undo, Op::Confirm][(line / 1000 % 10) as usize];
    let said = match line / 100 % 10 {
        0 => Said::Proceed,
        1 => Said::NullUndo,
        2 => Said::Dangling,
        _ => Said::Duplicate(Some(json!(line % 100 - 1))),
    };
    Line { op, said, number: line / 10000 }
}

/// Chance that is the same at every run, as far as the machine allows.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    /// Lets others go first, or not.
    async fn pause(&mut self) {
        for _ in 0..self.roll(30) {
            tokio::task::yield_now().await;
        }
    }
}
