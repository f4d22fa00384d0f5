//! `#[derive(ErrorKind)]`.

use redrive::{ErrorKind, Kind};

#[derive(ErrorKind)]
#[allow(dead_code, reason = "only their kinds matter")]
enum PayError<T> {
    Timeout(T),
    Declined {
        code: u16,
    },
    #[kind("no_permission")]
    Forbidden,
}

#[derive(ErrorKind)]
#[kind("connect")]
struct Unreachable;

#[test]
fn variants_are_kinds() {
    assert_eq!(PayError::Timeout(5).kind(), Kind::of("Timeout"));
    assert_eq!(PayError::<u8>::Declined { code: 7 }.kind(), Kind::of("Declined"));
    assert_eq!(PayError::<u8>::Forbidden.kind(), Kind::of("no_permission"));
    assert_eq!(Unreachable.kind(), Kind::CONNECT);
}
