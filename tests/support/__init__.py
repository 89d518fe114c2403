"""What tests share: farms, services, devices, tables and checks that several test modules use."""
