//! A shop at night, with all that pages of the console show: its warehouse is down, its bank hangs, an invoice has a bug, a trip is
//! stuck half undone. Everything happens: real nodes, real calls. Only hours that are past are written down as they might have been.

use std::f64::consts::TAU;
use std::time::Duration;

use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use redrive::gate::Hold;
use redrive::store::{GateAction, Moment, Registration};
use redrive::{Backoff, Context, Engine, EngineConfig, Failure, Lane, NewTask, OnExhausted, Policy, Store, Verdict};
use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};

use crate::support::Server;

/// How many died of what.
const UNPAID: usize = 412;
const UNPRINTED: usize = 37;

/// The shop; its nodes stop with this.
pub struct Shop {
    pub server: Server,
    workers: Vec<Engine>,
    /// A task that has failed some times and will be tried again.
    pub waits: String,
    /// A dead letter.
    pub letter: String,
}

impl Shop {
    pub async fn open() -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), services().await);
        bills(&dir.path().join("shop.db").display().to_string()).await;
        let server = Server::start_in(dir, &settings(port));
        let store = server.store().await;
        yesterday(&store).await;
        let workers = vec![worker(store.clone(), "worker-berlin").await, worker(store.clone(), "worker-madrid").await];
        let waits = tasks(&store).await;
        calls(&server);
        trips(&server);
        people(&store).await;
        let letter = become_old(&server, &store).await;
        Self { server, workers, waits, letter }
    }

    /// Some more calls that the bank answers.
    pub fn is_busy(&self) {
        payouts(&self.server, 100..140);
    }

    pub async fn close(self) {
        for worker in self.workers {
            worker.stop().await;
        }
    }
}

fn settings(port: u16) -> String {
    let at = format!("http://127.0.0.1:{port}");
    format!(
        "[engine]\nname = 'server-1'\n\
         [http]\nallow = ['127.0.0.0/8']\ngate = {{ breaker = {{ open_wait = {{ fixed = '20m' }}, open_jitter = 'none' }} }}\n\
         [methods.\"payment.charge\"]\nconcurrency = 40\nrate = {{ tasks = 200, per = '1s' }}\n\
         [targets.bank]\nbase_url = '{at}/bank'\nconcurrency = 20\n\
         [targets.warehouse]\nbase_url = '{at}/warehouse'\nrate = {{ tasks = 50, per = '1s' }}\n\
         [targets.crm]\nbase_url = '{at}/crm'\n\
         [guard]\nscan_interval = '1h'\n\
         [guards.bills]\ndatabase = 'sqlite://shop.db'\ntable = 'user_bill'\nservice_name = 'Bills'\nuser_field = 'user_id'\n\
         success_value = 'SUCCESS'\nfail_value = 'FAIL'\ncheck_url = '{at}/warehouse'\nhandle_url = '{at}/warehouse'\n\
         [guards.refunds]\ndatabase = 'sqlite://shop.db'\ntable = 'user_refund'\nservice_name = 'Refunds'\nsuccess_value = 1\n\
         fail_value = 2\ncheck_url = '{at}/warehouse'\nhandle_url = '{at}/warehouse'\n\
         [notify]\ndigest_interval = '1s'\n\
         [notify.channels.chat]\ntype = 'webhook'\nformat = 'slack'\nurl = '{at}/bank/hook'\n\
         [notify.channels.pager]\ntype = 'webhook'\nurl = '{at}/warehouse/pager'\n"
    )
}

/// The services that are called: the warehouse is down, the others answer, but not everything.
async fn services() -> u16 {
    let router = axum::Router::new().fallback(answer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

async fn answer(uri: Uri) -> Response {
    let path = uri.path();
    match path {
        _ if path.starts_with("/warehouse") => (StatusCode::SERVICE_UNAVAILABLE, "maintenance").into_response(),
        "/bank/flight" => (StatusCode::CONFLICT, "no seat is left on this flight").into_response(),
        "/bank/hotel/cancel" => (StatusCode::LOCKED, "the booking is locked by accounting").into_response(),
        "/bank/closed" => (StatusCode::UNPROCESSABLE_ENTITY, "this account is closed").into_response(),
        _ => axum::Json(json!({ "id": "b-7041", "state": "confirmed" })).into_response(),
    }
}

/// A node beside the server.
async fn worker(store: Store, name: &str) -> Engine {
    let charge = |_cx: Context, order: u64| async move {
        let why = format!("the bank did not answer for order {order} within 5 s");
        Err::<(), _>(Verdict::Failed(Failure::retry("timeout", why)))
    };
    let render = |_cx: Context, invoice: u64| async move {
        let why = format!("invoice {invoice}: the template has no field `vat_id`");
        Err::<(), _>(Verdict::Failed(Failure::reject("invalid_data", why)))
    };
    let mail = |_cx: Context, _: Value| async { Ok::<(), Verdict>(()) };
    let mut config = EngineConfig::default();
    config.name = name.into();
    let builder = Engine::builder(store).config(config).discover(false);
    let builder = builder.register("payment.charge", charge).register("mail.send", mail);
    let builder = if name.ends_with("berlin") { builder.register("invoice.render", render) } else { builder };
    builder.start().await.unwrap()
}

/// What waits and what dies; the id of one that waits.
async fn tasks(store: &Store) -> String {
    let now = store.now().await.unwrap();
    let once = |on_exhausted| Policy { max_attempts: Some(1), on_exhausted, ..Policy::default() };
    let (once, urgent) = (once(OnExhausted::Dead), once(OnExhausted::Escalate));
    let order = |n: usize| NewTask::new("payment.charge", &n).unwrap().business("order", n.to_string());
    let mut all: Vec<NewTask> =
        (0..UNPAID).map(|n| order(48_000 + n).key(format!("order-{}", 48_000 + n)).policy(once.clone())).collect();
    let invoice = |n: usize| NewTask::new("invoice.render", &n).unwrap().key(format!("invoice-{n}"));
    all.extend((0..UNPRINTED).map(|n| invoice(9_100 + n).business("invoice", (9_100 + n).to_string())));
    all.extend((0..3).map(|n| order(77 + n).policy(urgent.clone())));
    let later = |n: u64| Duration::from_secs(600 + n % 7_200);
    all.extend((0..1_284).map(|n| NewTask::new("mail.send", &n).unwrap().delay(later(n * 37))));
    all.extend((0..38).map(|n| NewTask::new("ledger.export", &n).unwrap().key(format!("day-{n}"))));
    all.extend((0..12).map(|n| NewTask::new("search.index", &n).unwrap()));
    store.insert(all, now).await.unwrap();
    let patient = [1, 2, 240, 480, 960, 1_800].map(Duration::from_secs);
    let backoff = Backoff::list([&patient.map(|_| Duration::from_millis(50))[..3], &patient[2..]].concat());
    let policy = Policy { max_attempts: Some(8), backoff, timeout: Some(Duration::from_secs(5)), ..Policy::default() };
    let order = order(48_911).key("order-48911").policy(policy);
    store.insert(vec![order], now).await.unwrap()[0].id.to_string()
}

/// What the bank is asked. It refuses some.
fn payouts(server: &Server, numbers: std::ops::Range<u32>) {
    for n in numbers {
        let body = json!({ "order": n, "amount": "12.50" }).to_string();
        let call = json!({ "target": "bank", "url": if n % 9 == 0 { "/closed" } else { "/payouts" }, "body": body });
        let task = json!({ "http": call, "key": format!("payout-{n}"), "business_type": "payout", "business_id": n.to_string() });
        assert_eq!(server.api("POST", "/tasks", &task).status, 201);
    }
}

/// What services are asked, by the server.
fn calls(server: &Server) {
    payouts(server, 0..60);
    for n in 0..46 {
        let call = json!({ "target": "warehouse", "url": "/parcels", "body": json!({ "parcel": n }).to_string() });
        let task = json!({ "http": call, "key": format!("parcel-{n}"), "business_type": "order", "business_id": format!("{}", 48_000 + n) });
        assert_eq!(server.api("POST", "/tasks", &task).status, 201);
    }
}

fn trips(server: &Server) {
    let to = |path: &str| json!({ "target": "bank", "url": path });
    let once = json!({ "max_attempts": 1 });
    let step = |name: &str, after: &[&str]| {
        json!({ "name": name, "after": after, "do": to(&format!("/{name}")), "undo": to(&format!("/{name}/cancel")),
                "policy": once, "undo_policy": once })
    };
    let flight = |path: &str| json!({ "name": "flight", "after": ["hotel", "car"], "do": to(path), "undo": to("/flights/cancel"), "policy": once });
    let trip = |id: String, path: &str| {
        let mail = json!({ "name": "tickets", "after": ["flight"], "do": to("/mail"), "undo": "none" });
        let steps = [step("quote", &[]), step("hotel", &["quote"]), step("car", &["quote"]), flight(path), mail];
        json!({ "id": id, "input": { "traveller": "Ada Lovelace", "from": "2026-12-01", "to": "LIS" }, "saga": { "name": "book-trip", "steps": steps } })
    };
    let refund = |id: String| {
        let wait = json!({ "name": "approval", "after": ["check"], "kind": { "wait_for": { "signal": "approved", "timeout": "2d" } } });
        let pay = json!({ "name": "payout", "after": ["approval"], "do": to("/payouts"), "pivot": true });
        let mail = json!({ "name": "receipt", "after": ["payout"], "do": to("/mail"), "undo": "none" });
        let steps = [step("check", &[]), wait, pay, mail];
        json!({ "id": id, "input": { "order": 48_007, "amount": "129.00" }, "saga": { "name": "refund", "steps": steps } })
    };
    let good = (7_001..7_012).map(|n| trip(format!("trip-{n}"), "/flights"));
    let all =
        good.chain([trip("trip-7012".into(), "/flight")]).chain((301..304).map(|n| refund(format!("refund-{n}"))));
    for saga in all {
        let answer = server.api("POST", "/sagas", &saga);
        assert_eq!(answer.status, 201, "{}", answer.body);
    }
}

/// What people have done, and a node that died.
async fn people(store: &Store) {
    let now = store.now().await.unwrap();
    let acting = store.acting("ada").unwrap().noting("index is rebuilt until 06:00");
    acting.pause("search.index", now).await.unwrap();
    let crm = Lane::of("http.crm");
    store.make_gate(crm, "http.crm", now).await.unwrap();
    store.act_on_gate(crm, GateAction::Hold(Hold::Open), "ada", Some("contract ends today"), now).await.unwrap();
    let methods = vec!["mail.send".into(), "payment.charge".into()];
    let node = Registration {
        name: "worker-lisbon".into(),
        build: env!("CARGO_PKG_VERSION").into(),
        methods,
        ..Registration::default()
    };
    let number = store.register(&node, now).await.unwrap();
    let beat = store.nodes().await.unwrap().into_iter().find(|node| node.number == number).unwrap().beat;
    assert!(store.fence(number, beat).await.unwrap());
}

/// The bank hangs since 34 minutes ago, trips are of this hour, nodes of this week.
const OLD: [&str; 8] = [
    "UPDATE retry_dead SET created_at = created_at - (id / 65536 % 34) * 61000, dead_at = dead_at - (id / 65536 % 34) * 61000 \
     WHERE id > (SELECT MIN(id) FROM retry_dead WHERE method_name = 'payment.charge')",
    "UPDATE retry_task SET created_at = created_at - 2000000, next_retry_time = next_retry_time - 1980000 \
     WHERE status = 0 AND method_name IN ('http.warehouse', 'ledger.export', 'search.index')",
    "UPDATE redrive_gate SET changed_at = changed_at - 1990000, failing_since = failing_since - 1990000",
    "UPDATE redrive_setting SET updated_at = updated_at - 5000000",
    "UPDATE redrive_audit SET at = at - 1800000 WHERE who <> 'first start'",
    "UPDATE redrive_node SET started_at = started_at - 277000000, beat_at = beat_at - dead * 1600000",
    "UPDATE redrive_saga SET created_at = created_at - unicode(substr(id, -1)) % 10 * 260000 - 900000, \
     updated_at = updated_at - unicode(substr(id, -1)) % 10 * 260000 - 900000",
    "UPDATE redrive_saga_event SET at = at - unicode(substr(saga_id, -1)) % 10 * 260000 - 900000",
];

/// Waits until everything stands as it should, and lets some of it have happened hours ago; the id of a letter.
async fn become_old(server: &Server, store: &Store) -> String {
    let state = async |id: &str| store.saga(id).await.unwrap().unwrap().summary.state.to_string();
    let letters = UNPAID + UNPRINTED + 3 + 7;
    let stands = async || {
        let gates = store.gates().await.unwrap();
        let told = store.channel_states().await.unwrap();
        store.overview().await.unwrap().dead.n as usize >= letters
            && gates.iter().any(|gate| gate.name == "http.warehouse" && gate.open_until.is_some())
            && (state("trip-7012").await, state("refund-303").await) == ("stuck".into(), "waiting".into())
            && (state("trip-7011").await, state("refund-301").await) == ("succeeded".into(), "waiting".into())
            && told.iter().any(|channel| channel.sent > 0)
            && told.iter().any(|channel| channel.tries > 0)
    };
    let mut looks = 0;
    while !stands().await {
        looks += 1;
        assert!(looks < 10_000, "the shop does not come to stand: {:#?}", store.overview().await.unwrap());
    }
    let mut db = SqliteConnection::connect(&server.database()).await.unwrap();
    for old in OLD {
        sqlx::query(old).execute(&mut db).await.unwrap();
    }
    let printed = first_letter(&mut db, "invoice.render").await.parse().unwrap();
    let note = Some("printed by hand");
    store.resolve(&[printed], "grace", note, store.now().await.unwrap()).await.unwrap();
    first_letter(&mut db, "payment.charge").await
}

async fn first_letter(db: &mut SqliteConnection, method: &str) -> String {
    let first = "SELECT id FROM retry_dead WHERE method_name = ? ORDER BY id LIMIT 1";
    sqlx::query_scalar::<_, i64>(first).bind(method).fetch_one(db).await.unwrap().to_string()
}

/// A day of a shop that is asleep at night, and an hour in which its bank hangs.
async fn yesterday(store: &Store) {
    let now = store.now().await.unwrap();
    let node = redrive::NodeNumber(1);
    let minute = now.as_millis() / 60_000;
    let exact = (minute - 61) / 10 * 10; // from here on by the minute, before it by ten: that is what curves have
    for ago in (1..1_460).filter(|ago| minute - ago >= exact || (minute - ago) % 10 == 0) {
        let long = if minute - ago >= exact { 1.0 } else { 10.0 };
        let ago = ago as f64;
        let wave = 1.0 + (ago / 1_440.0 * TAU).cos() * 0.6 + (ago / 7.0).sin() * 0.12;
        let bad = if ago < 34.0 { 1.0 } else { 0.04 };
        let mut moment = Moment::at(redrive::Timestamp::from_millis((minute - ago as i64) * 60_000));
        let put = |n: f64| (n * long).max(0.0) as u64;
        moment.enqueued = put(210.0 * wave);
        moment.done = put(208.0 * wave * (1.0 - bad * 0.35));
        moment.failed = put(95.0 * bad * (1.0 + (ago / 5.0).sin() * 0.3));
        moment.dead = put(13.0 * bad * (1.2 + (ago / 3.0).cos()));
        moment.waiting = Some((700.0 + 300.0 * wave + bad * 22.0 * (34.0 - ago).max(0.0)) as u64);
        store.note_minute(node, &moment).await.unwrap();
    }
}

/// A business table with rows that need people.
async fn bills(path: &str) {
    let mut db = SqliteConnection::connect(&format!("sqlite://{path}?mode=rwc")).await.unwrap();
    let table = "CREATE TABLE user_bill (id BIGINT PRIMARY KEY, user_id BIGINT, amount VARCHAR(20), status VARCHAR(20) NOT NULL, err_status INT, \
         err_start_time DATETIME, err_retry_count INT, err_next_retry_time DATETIME, err_min_interval INT, err_timeout INT, \
         err_submit_manual_status INT, err_next_remind_staff_time DATETIME, err_manual_notify_count INT)";
    sqlx::query(table).execute(&mut db).await.unwrap();
    for n in 0..24 {
        let (status, code) = match n {
            0..5 => ("FAIL", Some(4001)),
            5..8 => ("FAIL", Some(4000)),
            8..20 => ("SUCCESS", Some(2001)),
            _ => ("SUCCESS", None),
        };
        let row = "INSERT INTO user_bill (id, user_id, amount, status, err_status, err_start_time, err_retry_count, err_timeout, \
             err_next_retry_time, err_next_remind_staff_time, err_manual_notify_count) VALUES (?, ?, ?, ?, ?, \
             datetime('now', 'localtime', '-4 minutes'), 3, 86400, datetime('now', 'localtime', '+20 minutes'), \
             datetime('now', 'localtime', '+1 hour'), 2)";
        let row = sqlx::query(row).bind(5_010 + n).bind(1_000 + n % 7).bind(format!("{}.50", 12 + n)).bind(status);
        row.bind(code).execute(&mut db).await.unwrap();
    }
}
