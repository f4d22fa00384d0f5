//! The list and the routes for people, field by field as source 5 has them.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use redrive::guard::{BoxError, Guard, GuardHandler, GuardedTable, Guards, ListRequest};
use redrive::store::{AuditFilter, AuditOutcome, Role};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::bills::{ROUTE, SERVICE, Shop, guard};
use crate::harness::{Db, NOW, stores};

stores!(
    source_5_6_the_list_as_in_the_example,
    source_5_6_filters_order_and_pages,
    source_5_5_a_person_closes_a_row,
    source_5_5_a_route_that_is_taken_is_left_out,
    source_5_4_3_what_a_persons_word_does_is_the_handlers_to_say,
    source_5_4_3_an_empty_route_is_none,
    a_persons_word_is_kept_also_if_they_have_gone,
    who_may_and_what_is_written_down,
);

async fn call(router: &Router, request: Request<Body>) -> (StatusCode, Value) {
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

fn post(path: &str) -> Request<Body> {
    Request::post(path).body(Body::empty()).unwrap()
}

fn post_json(path: &str, body: &Value) -> Request<Body> {
    Request::post(path).header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())).unwrap()
}

const LIST: &str = "/api/admin/abnormal/list";

/// A second service, on a table of its own.
async fn miners(shop: &Shop) -> Guard {
    shop.sql("CREATE TABLE miner_card (id BIGINT PRIMARY KEY, status VARCHAR(20))").await;
    Guard::table("miner_card")
        .service_name("矿机购买卡牌销毁")
        .status_field("status")
        .success_value("SUCCESS")
        .fail_value("FAIL")
}

async fn source_5_6_the_list_as_in_the_example(db: Db) {
    let shop = Shop::open(db).await;
    let miners = miners(&shop).await;
    let guard = guard().comments([("id", "主键ID"), ("user_id", "用户ID")]);
    let builder = shop.builder(guard).guard(miners, shop.database(), shop.script.clone());
    let guards = builder.start().await.unwrap();
    shop.sql("INSERT INTO user_bill (id, user_id, status, err_status, err_start_time) VALUES (10, 1000, 'FAIL', 4001, '2026-02-05 12:00:00')").await;
    shop.sql("INSERT INTO user_bill (id, user_id, status, err_status) VALUES (11, 1000, 'FAIL', 2001)").await;
    let asked = json!({
        "pageNum": 1, "pageSize": 20,
        "serviceName": SERVICE, "serviceNameList": [SERVICE, "矿机购买卡牌销毁"],
        "errStatus": 4001, "errStatusList": [4000, 4001]
    });
    let (status, answer) = call(&guards.router_open("test"), post_json(LIST, &asked)).await;
    assert_eq!(status, 200);
    assert_eq!(answer, example());
}

/// The answer of source 5, §6, with the columns that it leaves out.
fn example() -> Value {
    json!({
        "code": 200,
        "msg": "获取成功",
        "data": {
            "records": [{
                "id": 10,
                "user_id": 1000,
                "status": "FAIL",
                "err_status": 4001,
                "err_start_time": "2026-02-05 12:00:00",
                "err_retry_count": null,
                "err_next_retry_time": null,
                "err_min_interval": null,
                "err_timeout": null,
                "err_submit_manual_status": null,
                "err_next_remind_staff_time": null,
                "err_manual_notify_count": null,
                "table": "user_bill",
                "serviceName": SERVICE,
                "manualSuccessRoute": "/api/user/admin/manual-bill-success"
            }],
            "total": 1,
            "pageNum": 1,
            "pageSize": 20,
            "serviceNames": [SERVICE, "矿机购买卡牌销毁"],
            "columnComments": {
                "user_bill": {
                    "id": "主键ID",
                    "user_id": "用户ID",
                    "err_status": "异常主状态",
                    "err_start_time": "首次异常时间",
                    "err_retry_count": "已重试次数",
                    "err_next_retry_time": "下次允许自动重试时间",
                    "err_min_interval": "最小重试间隔（秒）",
                    "err_timeout": "最大处理窗口（秒）",
                    "err_submit_manual_status": "人工处理状态",
                    "err_next_remind_staff_time": "下次提醒人工时间",
                    "err_manual_notify_count": "通知人工次数"
                }
            }
        }
    })
}

async fn source_5_6_filters_order_and_pages(db: Db) {
    let shop = Shop::open(db).await;
    let miners = miners(&shop).await;
    let builder = shop.builder(guard()).guard(miners, shop.database(), shop.script.clone());
    let guards = builder.start().await.unwrap();
    for (id, code, start) in [
        (1, "NULL", "1"),
        (2, "2000", "2"),
        (3, "4000", "30"),
        (4, "4001", "10"),
        (5, "2001", "30"),
        (6, "2002", "NULL"),
    ] {
        shop.add(id, "FAIL", &format!("err_status={code} err_start_time={start}")).await;
    }
    for (id, code, start) in [(3, 4000, 20), (4, 4001, 30)] {
        let at = shop.at(start);
        shop.sql(&format!(
            "INSERT INTO miner_card (id, status, err_status, err_start_time) VALUES ({id}, 'FAIL', {code}, {at})"
        ))
        .await;
    }
    let list = async |asked: Value| {
        let request: ListRequest = serde_json::from_value(asked).unwrap();
        let page = guards.list(&request).await.unwrap();
        let short = |record: &serde_json::Map<String, Value>| {
            format!("{}{}", &record["table"].as_str().unwrap()[..1], record["id"])
        };
        (page.total, page.records.iter().map(short).collect::<Vec<_>>().join(" "))
    };
    let all = |total, rows: &str| (total, rows.to_owned());
    // By err_start_time, then id; without a time last.
    assert_eq!(list(json!({})).await, all(6, "u4 m3 u3 m4 u5 u6"));
    assert_eq!(list(json!({ "pageNum": 2, "pageSize": 4 })).await, all(6, "u5 u6"));
    assert_eq!(list(json!({ "pageNum": 3, "pageSize": 4 })).await, all(6, ""));
    assert_eq!(list(json!({ "errStatus": 4000 })).await, all(2, "m3 u3"));
    assert_eq!(list(json!({ "errStatus": 2002, "errStatusList": [4000] })).await, all(3, "m3 u3 u6"));
    assert_eq!(list(json!({ "errStatusList": [2000] })).await, all(1, "u2"));
    assert_eq!(list(json!({ "serviceName": SERVICE })).await, all(4, "u4 u3 u5 u6"));
    assert_eq!(list(json!({ "serviceName": "", "serviceNameList": [] })).await.0, 6);
    let both = json!({ "serviceName": SERVICE, "serviceNameList": ["矿机购买卡牌销毁"], "errStatus": 4001 });
    assert_eq!(list(both).await, all(2, "u4 m4"));
    assert_eq!(list(json!({ "serviceName": "nobody" })).await, all(0, ""));
    for wrong in [json!({ "pageNum": 0 }), json!({ "pageSize": 501 }), json!({ "pageNum": 100_000, "pageSize": 500 })] {
        let (status, answer) = call(&guards.router_open("test"), post_json(LIST, &wrong)).await;
        assert_eq!((status.as_u16(), &answer["code"], &answer["data"]), (400, &json!(400), &Value::Null), "{answer}");
    }
    let (status, answer) = call(&guards.router_open("test"), post_json(LIST, &json!("all"))).await;
    assert_eq!((status.as_u16(), &answer["code"]), (400, &json!(400)), "{answer}");
}

async fn source_5_5_a_person_closes_a_row(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard()).await;
    let router = guards.router_open("console");
    shop.add(7, "FAIL", "err_status=4001 err_start_time=0").await;
    shop.add(8, "FAIL", "err_status=4001 err_start_time=0").await;
    let (status, answer) = call(&router, post(&format!("{ROUTE}?dataId=7"))).await;
    assert_eq!((status.as_u16(), answer), (200, json!({ "code": 200, "msg": "人工处理成功", "data": 7 })));
    let form = Request::post(ROUTE).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    let (status, answer) = call(&router, form.body(Body::from("dataId=8")).unwrap()).await;
    assert_eq!((status.as_u16(), answer), (200, json!({ "code": 200, "msg": "人工处理成功", "data": 8 })));
    for id in [7, 8] {
        assert_eq!(
            shop.state(id).await,
            "2002 SUCCESS start=+0 n=- next=- every=- within=- manual=4002 remind=- told=-"
        );
    }
    for (request, code) in [
        (post(ROUTE), 400),
        (post(&format!("{ROUTE}?dataId=")), 400),
        (post(&format!("{ROUTE}?dataId=x")), 400),
        (post(&format!("{ROUTE}?dataId=99")), 404),
        (Request::get(format!("{ROUTE}?dataId=7")).body(Body::empty()).unwrap(), 405),
    ] {
        let (status, answer) = call(&router, request).await;
        assert_eq!((status.as_u16(), &answer["code"], &answer["data"]), (code, &json!(code), &Value::Null), "{answer}");
    }
}

async fn source_5_5_a_route_that_is_taken_is_left_out(db: Db) {
    let shop = Shop::open(db).await;
    // Two guards with one route: the first has it.
    let miners = miners(&shop).await;
    let builder = shop.builder(guard()).guard(miners, shop.database(), shop.script.clone());
    let guards = builder.start().await.unwrap();
    shop.add(7, "FAIL", "err_status=4001").await;
    shop.sql("INSERT INTO miner_card (id, status, err_status) VALUES (7, 'FAIL', 4001)").await;
    assert_eq!(call(&guards.router_open("test"), post(&format!("{ROUTE}?dataId=7"))).await.0, 200);
    assert_eq!(shop.sql("SELECT COUNT(*) FROM miner_card WHERE err_status = 4001").await, Some(1));
    // One that the application has: none.
    let guards = shop.builder(guard()).taken_routes([ROUTE]).start().await.unwrap();
    assert_eq!(call(&guards.router_open("test"), post(&format!("{ROUTE}?dataId=7"))).await.0, 404);
}

/// Looks at the bank before it takes a person's word; at this route.
struct Careful(&'static str);

impl GuardHandler for Careful {
    type Id = i64;

    async fn check_status(&self, _: &i64) -> Result<bool, BoxError> {
        Ok(false)
    }

    async fn handle(&self, _: &i64) -> Result<bool, BoxError> {
        Ok(false)
    }

    fn manual_success_route(&self) -> String {
        self.0.into()
    }

    async fn manual_success(&self, table: &GuardedTable, id: &i64) -> Result<(), BoxError> {
        if *id == 7 {
            return Err("the bank has no payment".into());
        }
        Ok(table.processing_successful(*id).await?)
    }
}

async fn careful(shop: &Shop, route: &'static str) -> Guards {
    let builder = Guards::builder(shop.db.store.clone()).clock(shop.clock.clone()).by_hand();
    let guards = builder.guard(guard(), shop.database(), Careful(route)).start().await.unwrap();
    for id in [7, 8] {
        shop.add(id, "FAIL", "err_status=4001 err_start_time=0").await;
    }
    guards
}

async fn source_5_4_3_what_a_persons_word_does_is_the_handlers_to_say(db: Db) {
    let shop = Shop::open(db).await;
    let router = careful(&shop, ROUTE).await.router_open("test");
    let (status, answer) = call(&router, post(&format!("{ROUTE}?dataId=7"))).await;
    assert_eq!((status.as_u16(), &answer["code"], &answer["data"]), (409, &json!(409), &Value::Null), "{answer}");
    assert!(answer["msg"].as_str().unwrap().contains("the bank has no payment"), "{answer}");
    assert!(shop.state(7).await.starts_with("4001 FAIL"));
    assert_eq!(call(&router, post(&format!("{ROUTE}?dataId=8"))).await.0, 200);
    assert!(shop.state(8).await.starts_with("2002 SUCCESS"));
}

async fn source_5_4_3_an_empty_route_is_none(db: Db) {
    let shop = Shop::open(db).await;
    let guards = careful(&shop, "").await;
    let router = guards.router_open("test");
    assert_eq!(call(&router, post("/?dataId=8")).await.0, 404);
    let (_, list) = call(&router, post(LIST)).await;
    assert_eq!((&list["data"]["total"], &list["data"]["records"][0]["manualSuccessRoute"]), (&json!(2), &json!("")));
    guards.all()[0].manual_success(8, "ada").await.unwrap();
    assert!(shop.state(8).await.starts_with("2002 SUCCESS"));
}

async fn a_persons_word_is_kept_also_if_they_have_gone(db: Db) {
    let shop = Shop::open(db).await;
    let guards = careful(&shop, ROUTE).await;
    _ = tokio::time::timeout(Duration::ZERO, guards.all()[0].manual_success(8, "ada")).await;
    let is_written = async { while shop.db.store.audits(&AuditFilter::default(), 10).await.unwrap().is_empty() {} };
    tokio::time::timeout(Duration::from_secs(120), is_written).await.unwrap();
    assert!(shop.state(8).await.starts_with("2002 SUCCESS"));
}

async fn who_may_and_what_is_written_down(db: Db) {
    let shop = Shop::open(db).await;
    let (guards, _) = shop.start(guard()).await;
    let router = guards.router();
    shop.add(7, "FAIL", "err_status=4001 err_start_time=0").await;
    let token = async |name: &str, role| {
        let made = shop.db.store.create_token(name, role, None, "root", NOW).await.unwrap();
        made.secret.reveal().to_owned()
    };
    let (viewer, operator) = (token("eve", Role::Viewer).await, token("bob", Role::Operator).await);
    let with = |path: &str, token: &str| {
        Request::post(path).header(header::AUTHORIZATION, format!("Bearer {token}")).body(Body::empty()).unwrap()
    };
    let path = format!("{ROUTE}?dataId=7");
    assert_eq!(call(&router, post(&path)).await.1["code"], 401);
    assert_eq!(call(&router, with(&path, "rdr_no")).await.1["code"], 401);
    assert_eq!(call(&router, with(&path, &viewer)).await.1["code"], 403);
    assert_eq!(call(&router, with(LIST, &viewer)).await.1["code"], 403);
    assert!(shop.state(7).await.starts_with("4001"));
    assert_eq!(call(&router, with(LIST, &operator)).await.1["data"]["total"], 1);
    assert_eq!(call(&router, with(&path, &operator)).await.1["code"], 200);
    assert_eq!(call(&router, with(&format!("{ROUTE}?dataId=9"), &operator)).await.1["code"], 404);
    let of_bob = AuditFilter { who: Some("bob".into()), ..AuditFilter::default() };
    let done = shop.db.store.audits(&of_bob, 10).await.unwrap();
    let done: Vec<_> = done.iter().map(|a| (&*a.entry.action, &*a.entry.target, &a.entry.outcome)).collect();
    let (good, bad) = (format!("{SERVICE} 7"), format!("{SERVICE} 9"));
    let why = AuditOutcome::Refused("no row 9 in user_bill".into());
    assert_eq!(done, [("guard.manual_success", &*bad, &why), ("guard.manual_success", &*good, &AuditOutcome::Done)]);
    let of_eve = AuditFilter { who: Some("eve".into()), ..AuditFilter::default() };
    assert_eq!(shop.db.store.audits(&of_eve, 10).await.unwrap().len(), 2);
}
