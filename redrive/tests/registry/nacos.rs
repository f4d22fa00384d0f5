//! Who is there, while all goes well; and who dies.

use std::collections::BTreeSet;
use std::time::Duration;

use redrive::registry::{Member, Nacos, Registry, RegistryKind};
use redrive::store::Registration;
use redrive::{Engine, NewTask, NodeNumber, SHARDS, Settings, Status};
use tokio::sync::mpsc;

use crate::harness::{Db, Kind, new, slices};
use crate::server::{Server, Way, engine_config, nacos_config, node, shared, slow, until};

/// What Nacos itself lists for this database. (By an observer, who is listed too, but is in no node table and so in no view.)
struct Observer(Nacos);

const OBSERVER: NodeNumber = NodeNumber(1_000_000);

impl Observer {
    async fn of(db: &Db) -> Self {
        let nacos = Nacos::new(nacos_config(&shared())).unwrap();
        let member = Member { database: database(db).await, number: OBSERVER, name: "observer".into() };
        nacos.join(&member).await.unwrap();
        Self(nacos)
    }

    async fn until_listed(&self, wanted: &[NodeNumber]) {
        let wanted: BTreeSet<NodeNumber> = wanted.iter().copied().chain([OBSERVER]).collect();
        let wait = async { while self.0.view().await.unwrap().into_iter().collect::<BTreeSet<_>>() != wanted {} };
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("others are listed");
    }
}

/// A node that is in the node table, and in Nacos, and does nothing; and a way to lose it.
struct Ghost {
    number: NodeNumber,
    way: Way,
    nacos: Nacos,
}

impl Ghost {
    async fn register(db: &Db) -> Self {
        let who = Registration {
            name: "ghost".into(),
            build: "1".into(),
            methods: vec!["m".into()],
            ..Registration::default()
        };
        let number = db.store.register(&who, db.store.now().await.unwrap()).await.unwrap();
        let way = Way::to(&shared()).await;
        let nacos = Nacos::new(nacos_config(&way.address)).unwrap();
        Self { number, way, nacos }
    }

    async fn join(&self, db: &Db) {
        let member = Member { database: database(db).await, number: self.number, name: "ghost".into() };
        self.nacos.join(&member).await.unwrap();
    }
}

async fn database(db: &Db) -> String {
    let name = db.sql("SELECT value FROM redrive_counter WHERE name = 'database'").await.unwrap();
    format!("{name:016x}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_and_a_loss_are_pushed() {
    let (db, (done, _calls)) = (Db::fresh(Kind::Sqlite).await, mpsc::unbounded_channel());
    let a = node(&db, "a", slow("a"), &["m"], &done).await.start(&shared()).await;
    let mut ghost = Ghost::register(&db).await;
    assert_eq!(a.shards("m").len(), 64, "whoever is not listed does not count");
    ghost.join(&db).await; // in the node table nothing changes, and the next beat is far
    until(&db, "they share", || a.shards("m").len() == 32).await;
    ghost.way.cut();
    until(&db, "a is alone", || a.shards("m").len() == 64).await;
    a.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_and_a_leave_are_known_long_before_the_next_beat() {
    let (db, (done, _calls)) = (Db::fresh(Kind::Sqlite).await, mpsc::unbounded_channel());
    let a = node(&db, "a", slow("a"), &["m"], &done).await.start(&shared()).await;
    assert_eq!(a.shards("m").len(), 64);
    let b = node(&db, "b", slow("b"), &["m"], &done).await.start(&shared()).await;
    until(&db, "they share", || (a.shards("m").len(), b.shards("m").len()) == (32, 32)).await;
    let both: BTreeSet<u8> = a.shards("m").into_iter().chain(b.shards("m")).collect();
    assert_eq!(both.len(), usize::from(SHARDS));
    b.stop().await;
    until(&db, "a is alone", || a.shards("m").len() == 64).await;
    a.stop().await;
    let observer = Observer::of(&db).await;
    observer.until_listed(&[]).await;
}

/// Its entry goes with its connection, and its shards with the entry. What it had claimed waits until the database has seen its beat
/// stand still for a whole lease.
#[tokio::test(flavor = "multi_thread")]
async fn who_dies_loses_its_shards_in_seconds_and_its_tasks_only_by_the_fence() {
    let (db, (done, mut calls)) = (Db::fresh(Kind::Sqlite).await, mpsc::unbounded_channel());
    let mut config = engine_config("a");
    config.lease = Duration::from_secs(20);
    let a = node(&db, "a", config, &["m"], &done).await.start(&shared()).await;
    a.pause("m", None).await.unwrap(); // so that the one to die gets something

    let now = db.store.now().await.unwrap();
    let mut dies = Ghost::register(&db).await;
    db.store.insert((0..20).map(new).collect(), now).await.unwrap();
    assert_eq!(db.store.claim_due(&slices(), dies.number, now, 100).await.unwrap().tasks.len(), 20);
    dies.join(&db).await;
    until(&db, "a hears of it", || a.shards("m").len() == 32).await;
    a.resume("m", None).await.unwrap();

    dies.way.cut();
    until(&db, "a has all shards", || a.shards("m").len() == 64).await;
    assert!(!is_dead(&db, dies.number).await, "for the database it lives");
    db.store.insert((100..200).map(new).collect(), now).await.unwrap();
    for _ in 0..100 {
        let (_, n) = calls.recv().await.unwrap();
        assert!(n >= 100, "{n} is not a's to take yet");
    }
    assert!(!is_dead(&db, dies.number).await);
    for _ in 0..20 {
        assert!(calls.recv().await.unwrap().1 < 20);
    }
    assert!(is_dead(&db, dies.number).await, "rescued, because it was fenced");
    a.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

async fn is_dead(db: &Db, number: NodeNumber) -> bool {
    db.store.nodes().await.unwrap().iter().any(|node| node.number == number && node.dead)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_node_is_listed_under_its_new_number_only() {
    let (db, (done, mut calls)) = (Db::fresh(Kind::Sqlite).await, mpsc::unbounded_channel());
    let a = node(&db, "a", engine_config("a"), &["m"], &done).await.start(&shared()).await;
    let observer = Observer::of(&db).await;
    let old = db.store.nodes().await.unwrap()[0].number;
    observer.until_listed(&[old]).await;
    while !db.store.fence(old, db.store.nodes().await.unwrap()[0].beat).await.unwrap() {}
    let new_number = loop {
        let nodes = db.store.nodes().await.unwrap();
        if let Some(node) = nodes.iter().find(|node| !node.dead) {
            break node.number;
        }
    };
    observer.until_listed(&[new_number]).await;
    until(&db, "it works again", || a.shards("m").len() == 64).await;
    a.enqueue(new(1)).await.unwrap();
    assert_eq!(calls.recv().await, Some(("a", 1)));
    a.stop().await;
    observer.until_listed(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_with_different_methods_share_one_database_and_a_deploy_adds_a_method() {
    let (db, (done, mut calls)) = (Db::fresh(Kind::Sqlite).await, mpsc::unbounded_channel());
    let shop = node(&db, "shop", engine_config("shop"), &["m"], &done).await.start(&shared()).await;
    let mail = node(&db, "mail", engine_config("mail"), &["send"], &done).await.start(&shared()).await;
    assert_eq!((shop.shards("m").len(), mail.shards("send").len()), (64, 64));
    let now = db.store.now().await.unwrap();
    let of = |method: &str, n: u64| NewTask::new(method, &n).unwrap();
    let tasks = (0..50).flat_map(|n| [of("m", n), of("send", 100 + n), of("added", 200 + n)]).collect();
    db.store.insert(tasks, now).await.unwrap();
    for _ in 0..100 {
        let (who, n) = calls.recv().await.unwrap();
        assert_eq!(who, if n < 100 { "shop" } else { "mail" });
    }
    let mut waiting = db.store.list(&redrive::store::TaskFilter::default(), 1_000).await.unwrap();
    waiting.retain(|task| task.method == "added");
    assert!(waiting.iter().all(|task| (task.status, task.version) == (Status::Pending, 0)), "nobody touched them");
    assert_eq!(waiting.len(), 50);

    let deployed = node(&db, "new", engine_config("new"), &["m", "added"], &done).await.start(&shared()).await;
    for _ in 0..50 {
        let (who, n) = calls.recv().await.unwrap();
        assert_eq!((who, n >= 200), ("new", true));
    }
    until(&db, "they share", || (shop.shards("m").len(), deployed.shards("m").len()) == (32, 32)).await;
    assert_eq!((deployed.shards("added").len(), mail.shards("send").len()), (64, 64));
    shop.stop().await;
    until(&db, "the new one is alone", || deployed.shards("m").len() == 64).await;
    deployed.stop().await;
    mail.stop().await;
    assert_eq!(db.count("retry_task").await, 0);
}

/// Nodes of two databases have the same numbers, and the same settings for Nacos.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_two_databases_do_not_meet() {
    let (one, other) = (Db::fresh(Kind::Sqlite).await, Db::fresh(Kind::Sqlite).await);
    let (done, _calls) = mpsc::unbounded_channel();
    let a = node(&one, "a", engine_config("a"), &["m"], &done).await.start(&shared()).await;
    let b = node(&other, "b", engine_config("b"), &["m"], &done).await.start(&shared()).await;
    let numbers = [&one, &other].map(|db| async { db.store.nodes().await.unwrap()[0].number });
    let [of_a, of_b] = numbers;
    assert_eq!(of_a.await, of_b.await);
    Observer::of(&one).await.until_listed(&[NodeNumber(1)]).await;
    assert_eq!((a.shards("m").len(), b.shards("m").len()), (64, 64));
    a.stop().await;
    Observer::of(&other).await.until_listed(&[NodeNumber(1)]).await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_enough_and_a_server_that_wants_a_login_gets_one() {
    let auth = [
        ("RNACOS_ENABLE_OPEN_API_AUTH", "true"),
        ("RNACOS_INIT_ADMIN_USERNAME", "redrive"),
        ("RNACOS_INIT_ADMIN_PASSWORD", "p&ss=w%rd"),
    ];
    let mut server = Server::new(&auth).await;
    server.start().await;
    let db = Db::fresh(Kind::Sqlite).await;
    let settings = |user: &str, password: &str| {
        let mut settings = Settings::default();
        settings.engine = engine_config("a");
        settings.registry.kind = RegistryKind::Nacos;
        settings.registry.nacos = nacos_config(&server.address);
        settings.registry.nacos.username = Some(user.into());
        settings.registry.nacos.password = Some(password.into());
        settings
    };
    let member = Member { database: "0".into(), number: NodeNumber(1), name: "a".into() };
    let refused = Nacos::new(settings("nobody", "wrong").registry.nacos).unwrap().join(&member).await;
    assert!(refused.is_err(), "it has to be a user");

    let handler = |_: redrive::Context, _: u64| async { Ok::<(), redrive::Verdict>(()) };
    let builder = Engine::builder(db.another().await).settings(settings("redrive", "p&ss=w%rd"));
    let a = builder.register("m", handler).start().await.unwrap();
    // The server is up before its users are: the first login fails.
    until(&db, "it is listed", || a.shards("m").len() == 64).await;
    a.stop().await;
}
