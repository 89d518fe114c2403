"""How much power a device draws: `source.py` has the protocol, and each power source is one class in one module.

`DeviceVendor.power_source` (`farm/vendors/`) names the class for the devices of a vendor. A recording measures no power: its
rows have the power that was recorded.
"""
