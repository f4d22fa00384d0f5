//! What the compiler says of `#[retryable]`: nothing of what is right, and something helpful of what is wrong.
//!
//! `TRYBUILD=overwrite cargo test --test ui` writes down what it says now; read it before you believe it.

#[test]
fn what_is_right_compiles_and_what_is_wrong_is_explained() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
