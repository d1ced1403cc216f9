module etcdmaint.test/flate

go 1.22
