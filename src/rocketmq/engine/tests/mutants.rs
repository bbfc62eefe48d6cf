//! Each planted defect is found by the default number of seeds.
