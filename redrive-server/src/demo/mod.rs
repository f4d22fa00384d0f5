//! `redrive demo`: what redrive does, shown in half a minute, with nothing to set up.
//!
//! | file | what |
//! | --- | --- |
//! | `story` | the tasks, when they come, and how each is to end |
//! | `upstream` | the services that they call: one that is flaky, one that goes down |
//! | `mail` | a mail server that people's mails go to |
//! | `teller` | what is told, and the table at the end |
//!
//! Everything is real: a server with engine and API, on an embedded database in a directory of its own, requests over HTTP,
//! mails over SMTP. All of it is on loopback and in this process, and gone when it ends.
//!
//! *State.* For each task, what was told of it and how it stands. All of it is read from the store, again and again, as
//! anybody could by the API; the services do not tell.
//!
//! *Invariants.* It ends well only if every task ended as it was announced before it began.
//!
//! *Failure.* Something that takes longer than it should is waited for as long again; then the table shows it.

mod mail;
mod story;
mod teller;
mod upstream;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use redrive::store::{ArchiveFilter, Archived, DeadFilter, DeadTask, EndedAs, Redriven, TaskFilter};
use redrive::{Engine, IntoTask, Settings, Store, Task, TaskId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::http::{HttpCall, HttpDelivery, HttpRequest};
use crate::serve::{StopSignals, first_token};
use crate::server::{Server, collect_metrics};
use mail::Received;
use story::{End, Part};
use teller::{Teller, Tone};
use upstream::{Shop, Warehouse};

#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// How long the story may take, in seconds: 10 to 600.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(10..=600))]
    seconds: u64,
    /// Go on after the story, until Ctrl-C, so that you can look around.
    #[arg(long)]
    keep: bool,
}

/// Who acts as the person on call.
const PERSON: &str = "ada";
/// How often is looked what has become of the tasks.
const LOOK: Duration = Duration::from_millis(100);

impl Demo {
    pub(crate) async fn run(&self) -> Result<()> {
        let mut signals = StopSignals::new()?;
        let dir = tempfile::tempdir().context("making a directory for the demo")?;
        let mut stage = Stage::set(self.seconds, dir.path()).await?;
        let server = stage.server().await?;
        stage.introduce(&server).await?;
        let stopped = CancellationToken::new();
        let answering = tokio::spawn(server.run(stopped.clone().cancelled_owned()));
        let told = tokio::select! {
            told = stage.play() => told,
            signal = signals.next() => Err(anyhow::anyhow!("{signal}: the story was not told to its end")),
        };
        if self.keep && told.is_ok() {
            stage.teller.print("\nStill running, for you to look around. Stop with Ctrl-C.");
            signals.next().await;
        }
        stopped.cancel();
        _ = answering.await; // first: what is asked for takes an engine that runs
        stage.engine.stop().await;
        stage.engine.store().close().await;
        told
    }
}

/// Everything that plays.
struct Stage {
    teller: Teller,
    /// A thirtieth of the time there is.
    unit: Duration,
    engine: Engine,
    delivery: HttpDelivery,
    shop: Shop,
    warehouse: Warehouse,
    mails: mpsc::UnboundedReceiver<Received>,
    actors: Vec<Actor>,
}

/// A task of the story.
struct Actor {
    part: Part,
    id: Option<TaskId>,
    /// How it stands.
    now: End,
    /// Failed attempts that were told.
    told: usize,
    /// Mails that remind of it.
    reminders: u32,
}

impl Stage {
    async fn set(seconds: u64, dir: &std::path::Path) -> Result<Self> {
        let unit = Duration::from_secs(seconds) / 30;
        let parts = story::parts();
        let (sent, mails) = mpsc::unbounded_channel();
        let post = mail::serve(sent).await?;
        let (shop, shop_at) = Shop::open(parts.iter().map(|part| (part.name, part.answers))).await?;
        let warehouse = Warehouse::open()?;
        let settings = settings(unit, post, &[("shop", shop_at), ("warehouse", warehouse.address()?)])?;
        let delivery = HttpDelivery::new(&settings)?;
        let store = Store::open(&format!("sqlite://{}", dir.join("redrive.db").display())).await?;
        let builder = Engine::builder(store).settings(settings).discover(false);
        let engine = delivery.clone().install(builder).start().await?;
        let actors = parts.into_iter().map(Actor::new).collect();
        Ok(Self { teller: Teller::begin(), unit, engine, delivery, shop, warehouse, mails, actors })
    }

    async fn server(&self) -> Result<Server> {
        let loopback = ([127, 0, 0, 1], 0).into();
        Server::bind(loopback, self.engine.clone(), self.delivery.clone(), None, collect_metrics()?).await
    }

    /// What there is to look at meanwhile.
    async fn introduce(&self, server: &Server) -> Result<()> {
        let (address, token) =
            (server.address()?, first_token(self.engine.store(), server.address()?).await?.unwrap_or_default());
        let curl = format!("curl -H \"Authorization: Bearer $TOKEN\" http://{address}/api/v1");
        self.teller.print(&format!(
            "redrive {} makes failed calls good. Here are a shop, a warehouse and a mailbox, and what becomes of some orders.\n\
             To look around, while it lasts (with --keep, until Ctrl-C):\n\
             \n  console:  http://{address}/\
             \n  API:      http://{address}/api/v1\n\
             \n  TOKEN={token}\
             \n  {curl}/tasks    what waits or runs\
             \n  {curl}/dead     what waits for a person\
             \n  curl http://{address}/metrics\n",
            env!("CARGO_PKG_VERSION")
        ));
        Ok(())
    }

    /// Tells the story to its end; an error if a task did not end as it was announced.
    async fn play(&mut self) -> Result<()> {
        while !self.is_over() {
            self.step().await?;
            pause(LOOK).await;
        }
        self.teller.table(self.actors.iter().map(|actor| (actor.part.name, &actor.part.end, &actor.now)));
        let (all, wrong) = (self.actors.len(), self.actors.iter().filter(|actor| !actor.is_right()).count());
        if wrong > 0 {
            bail!("{wrong} of {all} tasks did not end as announced");
        }
        self.teller.print(&format!("All {all} ended as announced, in {:.0} s.", self.teller.elapsed().as_secs_f64()));
        Ok(())
    }

    fn is_over(&self) -> bool {
        let (units, all) = (self.units(), |actors: fn(&Actor) -> bool| self.actors.iter().all(actors));
        all(Actor::is_right) || units > 30.0 && all(|actor| actor.now.is_final()) || units > 60.0
    }

    fn units(&self) -> f64 {
        self.teller.elapsed().as_secs_f64() / self.unit.as_secs_f64()
    }

    /// What has come due, and what has become of the tasks.
    async fn step(&mut self) -> Result<()> {
        let before = self.units();
        for i in 0..self.actors.len() {
            self.enter(i, before).await?;
        }
        self.move_warehouse(before).await?;
        self.read_mails();
        self.look().await?;
        self.take_over().await
    }

    /// Enqueues the task of this actor, if its time has come.
    async fn enter(&mut self, i: usize, now: f64) -> Result<()> {
        let Some(actor) = self.actors.get(i).filter(|actor| actor.id.is_none() && actor.part.at <= now) else {
            return Ok(());
        };
        let name = actor.part.name;
        let announced = format!("{} [to be: {}]", actor.part.shows, actor.part.end);
        let (id, existed) = if name == story::BACK {
            let Some(id) = self.redrive().await? else { return Ok(()) };
            (id, false)
        } else {
            let request = HttpRequest::to_target(actor.part.target, format!("/orders/{name}"))
                .with_body(r#"{"amount": "129.90"}"#);
            let call = HttpCall::new(&self.delivery, request)?.key(name).business("order", name);
            let task = call.policy(story::policy(&actor.part, self.unit)?).into_new_task(&self.engine.defaults())?;
            let enqueued = self.engine.enqueue(task.dedup_for(Duration::from_secs(3600))).await?;
            (enqueued.id, enqueued.existed)
        };
        self.teller.say(Tone::News, name, &announced);
        if let Some(actor) = self.actors.get_mut(i) {
            actor.id = Some(id);
            if existed {
                actor.now = End::Twin;
                self.teller.say(Tone::Good, name, &format!("answered with the id that it has already, {id}"));
            }
        }
        Ok(())
    }

    /// The bug is mended, and the letter brought back; not before it is dead.
    async fn redrive(&self) -> Result<Option<TaskId>> {
        let dead =
            self.actors.iter().find(|actor| actor.part.name == story::REDRIVEN && matches!(actor.now, End::Dead(..)));
        let Some(id) = dead.and_then(|actor| actor.id) else { return Ok(None) };
        self.shop.mend(story::REDRIVEN);
        let store = self.engine.store();
        let done = store.acting(PERSON)?.noting("the shop is mended").redrive(&[id], None, store.now().await?).await?;
        self.engine.wake();
        match done.first().copied() {
            Some(Redriven::As(new)) => Ok(Some(new)),
            other => bail!("{} could not be redriven: {other:?}", story::REDRIVEN),
        }
    }

    async fn move_warehouse(&mut self, now: f64) -> Result<()> {
        match (now >= story::DOWN_AT, now >= story::UP_AT, self.warehouse.is_up()) {
            (true, false, true) => {
                self.warehouse.down().await;
                self.teller.say(Tone::Bad, "warehouse", "is down: nobody listens at its address");
            }
            (true, true, false) => {
                self.warehouse.up()?;
                self.teller.say(Tone::Good, "warehouse", "is up again");
            }
            _ => {}
        }
        Ok(())
    }

    fn read_mails(&mut self) {
        while let Ok(mail) = self.mails.try_recv() {
            self.teller.say(Tone::Mail, "mail", &format!("to {}: {}", mail.to.join(", "), mail.subject()));
            for actor in &mut self.actors {
                if let Some(n) = actor.id.and_then(|id| mail.reminder_of(&id.to_string())) {
                    actor.reminders = actor.reminders.max(n);
                    self.teller.say(Tone::Mail, actor.part.name, &format!("reminder {n}: it waits for a person"));
                }
            }
        }
    }

    /// Somebody reads the mails at last.
    async fn take_over(&mut self) -> Result<()> {
        let called = |actor: &&Actor| {
            actor.part.name == story::ESCALATED
                && actor.reminders >= story::REMINDERS
                && matches!(actor.now, End::Dead(..))
        };
        let Some(id) = self.actors.iter().find(called).and_then(|actor| actor.id) else { return Ok(()) };
        let store = self.engine.store();
        store.acting(PERSON)?.take_over(id, PERSON, store.now().await?).await?;
        self.teller.say(Tone::Good, story::ESCALATED, "ada has taken it over: no more mails");
        self.look().await
    }

    /// Reads how the tasks stand, and tells what is new.
    async fn look(&mut self) -> Result<()> {
        let store = self.engine.store();
        // In the order in which tasks go from one to the next, so that none is missed on its way.
        let live = store.list(&TaskFilter::default(), 100).await?;
        let dead = store.dead(&DeadFilter::default(), 100).await?;
        let ended = store.archive(&ArchiveFilter::default(), 100).await?;
        for actor in self.actors.iter_mut().filter(|actor| actor.now != End::Twin) {
            let Some(id) = actor.id else { continue };
            let now = if let Some(ended) = ended.iter().find(|ended| ended.task.id == id) {
                actor.tell_failures(&self.teller, &ended.task, None);
                actor.end_of(ended)
            } else if let Some(letter) = dead.iter().find(|letter| letter.task.id == id) {
                actor.tell_failures(&self.teller, &letter.task, None);
                actor.dead_as(letter)
            } else if let Some(task) = live.iter().find(|task| task.id == id) {
                actor.tell_failures(&self.teller, task, Some(task.due));
                End::Waits(task.attempts)
            } else {
                continue;
            };
            actor.becomes(&self.teller, now);
        }
        Ok(())
    }
}

impl Actor {
    fn new(part: Part) -> Self {
        Self { part, id: None, now: End::Waits(0), told: 0, reminders: 0 }
    }

    fn is_right(&self) -> bool {
        self.now.is_as(&self.part.end)
    }

    fn end_of(&self, ended: &Archived) -> End {
        match (ended.ended_as, ended.dead_reason) {
            (EndedAs::Redriven, Some(why)) => End::Redriven(why, ended.task.attempts),
            (_, Some(why)) => End::Dead(why, ended.task.attempts),
            (_, None) => {
                let attempts = ended.task.history.last().map_or(0, |failed| failed.n) + 1;
                End::Done(attempts..=attempts)
            }
        }
    }

    fn dead_as(&self, letter: &DeadTask) -> End {
        let (why, attempts) = (letter.reason, letter.task.attempts);
        match letter.owner {
            Some(_) => End::TakenOver(why, attempts, self.reminders..=self.reminders),
            None => End::Dead(why, attempts),
        }
    }

    /// Attempts that have failed since the last look.
    fn tell_failures(&mut self, teller: &Teller, task: &Task, due: Option<redrive::Timestamp>) {
        for (i, attempt) in task.history.iter().enumerate().skip(self.told) {
            let last = i + 1 == task.history.len();
            let again =
                due.filter(|_| last).map(|due| format!("; again in {:.1} s", due.since(attempt.at).as_secs_f64()));
            let said = format!(
                "attempt {} failed, {}: {}{}",
                attempt.n,
                attempt.kind,
                attempt.message,
                again.unwrap_or_default()
            );
            teller.say(Tone::Retry, self.part.name, &said);
        }
        self.told = task.history.len().max(self.told);
    }

    fn becomes(&mut self, teller: &Teller, now: End) {
        if now.is_final() && now != self.now {
            let tone = if matches!(now, End::Done(_) | End::Redriven(..)) { Tone::Good } else { Tone::Bad };
            teller.say(tone, self.part.name, &now.to_string());
        }
        self.now = now;
    }
}

/// Short enough for the story.
fn settings(unit: Duration, post: u16, targets: &[(&str, std::net::SocketAddr)]) -> Result<Settings> {
    let units = |n: u32| humantime::format_duration(story::whole_millis(unit * n)).to_string();
    let mut toml = format!(
        "[notify]\ndigest_interval = '{}'\nremind_every = '{}'\n\
         [notify.channels.ops]\ntype = 'mail'\nhost = '127.0.0.1'\nport = {post}\nencryption = 'none'\n\
         from = 'redrive@example.org'\nto = ['{PERSON}@example.org']\n",
        units(1),
        units(5)
    );
    for (name, address) in targets {
        toml += &format!("[targets.{name}]\nbase_url = 'http://{address}'\nallow_private = true\n");
    }
    Ok(Settings::parse(&toml, std::iter::empty())?)
}

#[expect(clippy::disallowed_methods, reason = "a story takes its time")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
