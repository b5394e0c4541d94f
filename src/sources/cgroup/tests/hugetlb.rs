//! Limits of huge pages.

use super::*;
use crate::host::roots::Roots;

#[test]
fn limits_of_huge_pages_are_those_of_cgroups_that_have_one() {
    for tree in [Tree::v1(), Tree::v2()] {
        let is_v1 = tree.version == Version::V1;
        let pool = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        tree.root.write(pool, "1024\n");
        for (path, limit) in
            [("/a", "4194304\n"), ("/b", if is_v1 { "9223372036854771712\n" } else { "max\n" })]
        {
            tree.group(path, 10, 0, None);
            let name = |v1, v2| format!("hugetlb.2MB.{}", if is_v1 { v1 } else { v2 });
            let folder =
                if is_v1 { tree.root.path().join("hugetlb").join(&path[1..]) } else { tree.dir(path) };
            tree.root.write(folder.join(name("limit_in_bytes", "max")), limit);
            tree.root.write(folder.join(name("usage_in_bytes", "current")), "2097152\n");
        }
        let roots = Roots { cgroup: tree.root.path().to_path_buf(), ..Roots::under(tree.root.path()) };
        let Subject(plain) = tree.source();
        let mut source = Subject(Cgroups { hugetlb: Hugetlb::new(&roots), ..plain });
        source.check(
            0,
            &["huge_pages"],
            expect![[r#"
                memwarden_cgroup_huge_pages_limit_bytes{cgroup="/a",size="2MB"} 4194304
                memwarden_cgroup_huge_pages_usage_bytes{cgroup="/a",size="2MB"} 2097152
            "#]],
        );
        tree.root.write(pool, "0\n");
        source.check(5, &["huge_pages"], expect![""]);
    }
}
